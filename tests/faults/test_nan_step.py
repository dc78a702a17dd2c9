"""One step whose loss is NaN, at any stage: the run stops, and the same command ends as if it never did."""

from pathlib import Path

import pytest
from torch import Tensor

from pfge.tasks import Classification
from tests.lab.tiny import outcome, run, tiny

SETTINGS = ("ensemble.methods=['SWA','PFGE']", "ensemble.length=8", "engine.checkpoint_seconds=0")
ALL_STEPS = 10 + 8 + 4  # w0, the shared path, and PFGE's own after its first period


def with_nan_at(step: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the loss of one training step NaN; return a list that has the number of steps so far."""
    steps, loss = [0], Classification.loss

    def sometimes_nan(self: Classification, outputs: Tensor, targets: Tensor) -> Tensor:
        found = loss(self, outputs, targets)
        steps[0] += outputs.requires_grad
        return found * float("nan") if outputs.requires_grad and steps[0] == step else found

    monkeypatch.setattr(Classification, "loss", sometimes_nan)
    return steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        steps = with_nan_at(0, patch)
        run(tiny(*SETTINGS), folder)
    assert steps == [ALL_STEPS]
    return outcome(folder)


@pytest.mark.parametrize("step", [1, 4, 10, 11, 14, 18, 19, 22])
def test_a_nan_step_does_not_lose_the_run(
    step: int, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        with_nan_at(step, patch)
        with pytest.raises(ValueError, match="holds NaN or infinity at iteration"):
            run(tiny(*SETTINGS), tmp_path)
    with monkeypatch.context() as patch:
        steps = with_nan_at(0, patch)
        run(tiny(*SETTINGS), tmp_path)
    assert outcome(tmp_path) == whole
    assert steps[0] <= ALL_STEPS - step + 1  # from the checkpoint before that step
