from pathlib import Path

import numpy as np
import pytest
import torch

from pfge import SWAG, Weights, load_checkpoint, save_checkpoint


def points(count: int, seed: int = 0) -> list[Weights]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "a": torch.randn(2, generator=generator, dtype=torch.float64),
            "b": torch.randn(1, 1, generator=generator, dtype=torch.float64),
        }
        for _ in range(count)
    ]


def flat(weights: Weights) -> np.ndarray:
    return torch.cat([weights["a"].reshape(-1), weights["b"].reshape(-1)]).numpy()


def fit(swag: SWAG, seen: list[Weights]) -> SWAG:
    swag.begin({name: torch.full_like(tensor, 100.0) for name, tensor in seen[0].items()})
    for iteration, weights in enumerate(seen, 1):
        swag.observe(iteration, weights)
    return swag


def closed_form(seen: list[Weights], rank: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance as defined in Maddox et al., from all points at once."""
    matrix = np.stack([flat(weights) for weights in seen])
    deviations = np.stack([matrix[i] - matrix[: i + 1].mean(axis=0) for i in range(len(matrix))])[-rank:]
    low_rank = deviations.T @ deviations / (len(deviations) - 1)
    return matrix.mean(axis=0), scale * (np.diag(matrix.var(axis=0)) + low_rank)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "scale"), [(20, 0.5), (3, 0.5), (4, 1.0)])
def test_samples_have_the_mean_and_covariance_of_the_closed_form(rank: int, scale: float) -> None:
    seen = points(6)
    count = 4_000
    swag = fit(SWAG(1, rank=rank, scale=scale, samples=count), seen)
    samples = np.stack([flat(member) for member in swag.members()])
    mean, covariance = closed_form(seen, rank, scale)
    spread = np.sqrt(np.diag(covariance))
    # Five standard errors; off-diagonal entries show that one vector serves all tensors.
    assert np.all(np.abs(samples.mean(axis=0) - mean) < 5 * spread / count**0.5)
    error = np.sqrt((covariance**2 + np.outer(spread**2, spread**2)) / count)
    assert np.all(np.abs(np.cov(samples.T) - covariance) < 5 * error)


def test_the_start_point_is_no_point_of_the_gaussian() -> None:
    seen = points(4)
    swag = fit(SWAG(1, scale=0.0), seen)
    expected = np.stack([flat(weights) for weights in seen]).mean(axis=0)
    assert flat(swag.members()[0]) == pytest.approx(expected, abs=1e-14)


def test_a_sample_depends_on_seed_and_index_alone() -> None:
    first, second = fit(SWAG(1, seed=3), points(4)), fit(SWAG(1, seed=3), points(4))
    assert np.array_equal(flat(first.members()[7]), flat(second.members()[-13]))
    assert not np.array_equal(flat(first.members()[7]), flat(first.members()[8]))
    assert not np.array_equal(flat(first.members()[7]), flat(fit(SWAG(1, seed=4), points(4)).members()[7]))


def test_a_sample_does_not_depend_on_the_order_of_names() -> None:
    seen = points(4)
    turned = [dict(reversed(weights.items())) for weights in seen]
    assert np.array_equal(flat(fit(SWAG(1), seen).members()[0]), flat(fit(SWAG(1), turned).members()[0]))


def test_sampling_leaves_the_global_random_state_alone() -> None:
    swag = fit(SWAG(1), points(3))
    before = torch.get_rng_state()
    swag.members()[0]
    assert torch.equal(torch.get_rng_state(), before)


def test_only_the_last_deviations_are_kept() -> None:
    swag = fit(SWAG(1, rank=3), points(9))
    assert len(swag.state_dict()["deviations"]) == 3


def test_fewer_than_two_points_have_no_spread() -> None:
    with pytest.raises(ValueError, match=r"SWAG\(cycle=1.*needs 2 points or more to sample from, has 1"):
        fit(SWAG(1), points(1)).members()


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="rank must be at least 0, got -1"):
        SWAG(1, rank=-1)
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        SWAG(1, samples=0)
    with pytest.raises(ValueError, match=r"rank must be a whole number, got 2\.5; round it to an int"):
        SWAG(1, rank=2.5)  # type: ignore[arg-type]


def test_complex_weights_are_sampled_as_their_real_and_imaginary_parts(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(3, 2, 2, generator=generator) for _ in range(5)]
    real = fit(SWAG(1, rank=3, samples=2), [{"w": part} for part in parts])
    seen = [{"w": torch.view_as_complex(part)} for part in parts]
    imaginary = fit(SWAG(1, rank=3, samples=2), seen)
    save_checkpoint(tmp_path / "state", imaginary.state_dict())
    resumed = SWAG(1, rank=3, samples=2)
    resumed.load_state_dict(load_checkpoint(tmp_path / "state"))
    for one, two, again in zip(real.members(), imaginary.members(), resumed.members(), strict=True):
        assert two["w"].dtype == torch.complex64
        torch.testing.assert_close(torch.view_as_real(two["w"]), one["w"])
        assert torch.equal(two["w"], again["w"])
    spread = torch.view_as_real(torch.stack([weights["w"] for weights in seen])).var(0, correction=0)
    torch.testing.assert_close(imaginary.state_dict()["squares"]["w"] / 5, spread)
