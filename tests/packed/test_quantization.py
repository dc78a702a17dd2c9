import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pfge.packed.codes import count_groups, quantize, quantized_size


def random_numbers(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def squared_error(numbers: Tensor, bits: int, group: int) -> float:
    return (quantize(numbers, bits, group).numbers() - numbers).double().square().sum().item()


def least_squared_error(numbers: Tensor, bits: int) -> float:
    """Try 3,000 steps in numpy on the levels -L/2, ..., -1/2, 1/2, ..., L/2 for L = 2**bits - 1."""
    values = numbers.double().numpy()
    levels = np.arange(2**bits) - (2**bits - 1) / 2
    largest = np.abs(values).max()
    errors = []
    for step in np.linspace(0, 2 * largest / 2 ** (bits - 1), 3_000)[1:]:
        nearest = levels[np.clip(np.round(values / step - levels[0]).astype(int), 0, 2**bits - 1)]
        errors.append(np.square(values - step * nearest).sum())
    return float(min(errors))


def test_one_bit_is_the_sign_times_the_mean_absolute_value() -> None:
    # Groups (1, -3, 2, -2) and (4, 0): means of absolute values 2 and 2; zero counts as positive.
    found = quantize(torch.tensor([1.0, -3, 2, -2, 4, 0]), 1, 4).numbers()
    assert found.tolist() == [2, -2, 2, -2, 2, 2]


def test_numbers_on_the_levels_are_exact() -> None:
    # Steps of 1/4: all levels of 3 bits are odd multiples of 1/8.
    numbers = torch.tensor([-7, -5, -3, -1, 1, 3, 5, 7]) / 8
    assert torch.equal(quantize(numbers, 3, 8).numbers(), numbers)


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_error_is_nearly_the_least_that_any_step_gives(bits: int) -> None:
    for seed, power in ((0, 1), (1, 3)):  # the third power has a few numbers far out
        numbers = random_numbers(64, seed) ** power
        least = least_squared_error(numbers, bits)
        # Rounding a step to bfloat16 moves the outermost of 128 levels by up to 128 * 2**-9 steps.
        assert squared_error(numbers, bits, 64) <= least * (1.03 if bits < 6 else 1.3)


def test_gaussian_numbers_have_the_distortion_of_a_uniform_quantizer() -> None:
    # Max (1960), table II: mean squared error of the best uniform quantizer of a unit Gaussian.
    numbers = random_numbers(2**16)
    for bits, distortion in ((1, 0.3634), (2, 0.1188), (3, 0.03744), (4, 0.01154)):
        error = squared_error(numbers, bits, 2**16) / numbers.numel()
        assert error == pytest.approx(distortion, rel=0.03)


@settings(max_examples=60)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False), max_size=40),
    st.integers(1, 8),
    st.integers(1, 17),
)
def test_no_group_is_further_off_than_zeros_would_be(values: list[float], bits: int, group: int) -> None:
    numbers = torch.tensor(values, dtype=torch.float32)
    quantized = quantize(numbers, bits, group)
    found = quantized.numbers()
    assert quantized.nbytes == quantized_size(len(values), bits, group)
    for start in range(0, len(values), group):
        part, back = numbers[start : start + group], found[start : start + group]
        error, size = (part - back).double().square().sum(), part.double().square().sum()
        assert error <= size * (1 + 1e-6)


@pytest.mark.parametrize("scale", [1e-37, 1e-12, 1.0, 1e12, 3e38])
def test_tiny_and_huge_numbers_lose_no_more_than_others(scale: float) -> None:
    numbers = random_numbers(64)
    numbers = numbers / numbers.abs().max()
    found = quantize(numbers * scale, 4, 64).numbers() / scale
    assert (found - numbers).norm() / numbers.norm() < 0.12


def test_zeros_stay_zero() -> None:
    assert torch.equal(quantize(torch.zeros(9), 3, 4).numbers(), torch.zeros(9))


def test_a_shorter_last_group_is_treated_like_any_other() -> None:
    numbers = random_numbers(10)
    together, alone = quantize(numbers, 3, 8), quantize(numbers[8:], 3, 8)
    assert torch.equal(together.numbers()[8:], alone.numbers())


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_tensors_are_quantized(shape: tuple[int, ...]) -> None:
    assert torch.equal(quantize(torch.ones(shape), 1, 64).numbers(), torch.ones(shape).flatten())


def test_bytes_are_those_of_codes_and_steps() -> None:
    # 100 numbers: 13 bytes a bit, and two groups with a 2-byte step each.
    assert quantize(random_numbers(100), 3, 64).nbytes == 3 * 13 + 2 * 2 == quantized_size(100, 3, 64)
    assert count_groups(128, 64) == 2


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match="a group must have at least 1 number, got 0"):
        quantize(torch.zeros(3), 3, 0)
