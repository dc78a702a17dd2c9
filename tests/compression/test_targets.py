import pytest

from pfge.compression import MaxLoss, Quality


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        (MaxLoss(kl=0.2), True),
        (MaxLoss(kl=0.1), True),
        (MaxLoss(kl=0.05), False),
        (MaxLoss(nll_increase=0.3), True),
        (MaxLoss(nll_increase=0.2), False),
        (MaxLoss(kl=0.1, nll_increase=0.3), True),
        (MaxLoss(kl=0.05, nll_increase=0.3), False),
        (MaxLoss(kl=0.1, nll_increase=0.2), False),
    ],
)
def test_a_loss_is_allowed_up_to_every_limit_that_is_given(target: MaxLoss, allowed: bool) -> None:
    assert target.allows(Quality(kl=0.1, nll_increase=0.3)) is allowed


def test_a_loss_without_a_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="MaxLoss needs a limit; give kl, nll_increase or both"):
        MaxLoss()


@pytest.mark.parametrize("most", [0.0, -1.0, float("nan")])
def test_a_limit_that_nothing_can_keep_is_refused(most: float) -> None:
    with pytest.raises(ValueError, match=f"kl must be above 0, got {most}"):
        MaxLoss(kl=most)
    with pytest.raises(ValueError, match=f"nll_increase must be above 0, got {most}"):
        MaxLoss(kl=0.1, nll_increase=most)
