import pytest
import torch

from pfge.lab.data.base import derive_seed, generator, seed_torch


def first_numbers(*arguments: int | str) -> tuple[int, ...]:
    seed, purpose, *numbers = arguments
    return tuple(torch.randint(2**31, (4,), generator=generator(seed, purpose, *numbers)).tolist())


def test_equal_arguments_give_equal_streams():
    assert first_numbers(3, "order", 7) == first_numbers(3, "order", 7)


def test_seed_purpose_and_number_each_give_another_stream():
    streams = {first_numbers(s, p, n) for s in range(4) for p in ("order", "split") for n in range(4)}
    assert len(streams) == 32


def test_numbers_are_kept_apart():
    assert first_numbers(1, "crop", 1, 23) != first_numbers(1, "crop", 12, 3)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    first_numbers(0, "order", 1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("seed", [0, 2**31, 2**64 - 1, derive_seed(1, "forward", 2)])
def test_torch_is_seeded_as_by_its_own_function(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        expected = torch.rand(5)
        seed_torch(seed)
        assert torch.equal(torch.rand(5), expected)
