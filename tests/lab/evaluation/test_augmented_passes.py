"""Test-time augmentation against pictures that are moved and mirrored by hand."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pfge import Ensemble
from pfge.forward import call_model
from pfge.lab.config.settings import ConfigError
from pfge.lab.data import Normalization
from pfge.lab.data.batches import Augmentation
from pfge.lab.evaluation.passes import augmented_passes, views_of
from pfge.lab.run.progress import Reporter
from pfge.lab.session import open_run
from pfge.storage.files import StorageError
from pfge.tasks import Classification
from pfge.views import View, Views
from pfge.weights import copy_weights, view_weights
from tests.lab.tiny import run, tiny

NORMALIZATION = Normalization((0.5,), (0.25,))


def test_views_are_those_of_training_and_the_first_is_the_picture() -> None:
    def views(crop_padding: int, flip: bool, count: int) -> tuple[View, ...]:
        return views_of(Augmentation(crop_padding, flip), NORMALIZATION, count).views

    assert views(4, True, 4) == (View(), View(mirrored=True), View(-2), View(-2, 0, True))
    assert views(0, True, 4) == (View(), View(mirrored=True))
    assert views(1, False, 9) == (View(), View(-1), View(1), View(0, -1), View(0, 1))
    assert len(set(views(4, True, 99))) == 10


def test_black_moves_in_at_the_edges() -> None:
    two = Normalization((0.5, 0.2), (0.25, 0.1))
    assert views_of(Augmentation(4, True), two, 4).border == (-2.0, -2.0)


def make_passes(*views: View) -> tuple[Ensemble, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 4, 2)).eval()
    ensemble = augmented_passes(
        copy_weights(view_weights(model)),
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(3 * 4, 2)),
        Views(views, (-2.0,)),
        task=Classification(),
        forward=call_model,
        method="TTA",
    )
    return ensemble, model


def test_the_prediction_is_the_mean_over_views() -> None:
    views = [View(), View(mirrored=True), View(1, 0), View(0, -1, True)]
    ensemble, model = make_passes(*views)
    x = torch.rand(5, 1, 4, 4)
    with torch.no_grad():
        by_hand = torch.stack([model(view.of(x, [-2.0])).softmax(1) for view in views])
    torch.testing.assert_close(ensemble.predict_members(x), by_hand)
    torch.testing.assert_close(ensemble.predict(x), by_hand.mean(0))
    again: Tensor = ensemble.predict(x)
    assert torch.equal(again, ensemble.predict(x))


def test_it_takes_the_memory_of_one_model() -> None:
    assert make_passes(View(), View(mirrored=True))[0].nbytes == make_passes(View())[0].nbytes


def test_a_comparison_measures_the_model_of_swa(tmp_path: Path) -> None:
    both = "ensemble.methods=['TTA','SWA']"
    rows = {row["method"]: row for row in run(tiny(both, "data.crop_padding=1"), tmp_path / "run")}
    assert list(rows) == ["w0", "SWA", "TTA"]
    swa, augmented = rows["SWA"], rows["TTA"]
    assert augmented["members"] == 4
    assert (augmented["bytes"], augmented["iterations"]) == (swa["bytes"], swa["iterations"])
    assert augmented["each"]["test"][0]["nll"] == pytest.approx(swa["test"]["nll"], abs=1e-9)
    assert augmented["test"]["nll"] != swa["test"]["nll"]
    with (
        open_run(tmp_path / "run", Reporter(quiet=True)) as session,
        pytest.raises(
            StorageError,
            match=r"TTA is one model in several passes .*; give .*/SWA, or a copy of it made by pfge views$",
        ),
    ):
        session.load_ensemble(session.folder.ensemble(1, "TTA"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["ensemble.methods=['TTA','FGE']", "data.flip=true"],
            "TTA uses the model of SWA, so ensemble.methods",
        ),
        (["ensemble.methods=['TTA','SWA']"], r"data\.crop_padding must be above 0 or data\.flip true"),
        (
            ["ensemble.methods=['TTA','SWA']", "data.flip=true", "data.name=breast_cancer", "model.name=mlp"],
            "apply to images|needs images",
        ),
    ],
)
def test_what_it_cannot_use_is_refused_before_any_work(
    tmp_path: Path, settings: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tiny(*settings), tmp_path / "run")
    assert not (tmp_path / "run" / "seed-1").exists()
