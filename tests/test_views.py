"""Views of pictures, and the mean over them, against pictures that are moved and mirrored by hand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pfge import Bits, Ensemble, compress
from pfge.calibration import Temperatures
from pfge.cascade import fit_cascade
from pfge.export import export_onnx, export_torch
from pfge.forward import call_model
from pfge.storage.ensemble_folder import MANIFEST
from pfge.storage.files import StorageError
from pfge.tasks import Classification, MultiLabel, Regression, Task
from pfge.views import View, Views, usual_views
from pfge.weights import Weights, copy_weights, view_weights
from tests.export.exported_files import answer

PICTURE = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])[None, None]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (View(), [[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        (View(mirrored=True), [[3, 2, 1], [6, 5, 4], [9, 8, 7]]),
        (View(down=1), [[0, 0, 0], [1, 2, 3], [4, 5, 6]]),
        (View(down=-1), [[4, 5, 6], [7, 8, 9], [0, 0, 0]]),
        (View(right=2), [[0, 0, 1], [0, 0, 4], [0, 0, 7]]),
        (View(down=1, right=-1, mirrored=True), [[0, 0, 0], [0, 3, 2], [0, 6, 5]]),
    ],
)
def test_a_view_moves_and_then_mirrors(view: View, expected: list[list[int]]) -> None:
    assert view.of(PICTURE)[0, 0].tolist() == expected


def test_what_moves_in_is_black_before_normalization() -> None:
    seen = View(down=1).of(torch.ones(1, 2, 2, 2), (-2.0, -3.0))
    assert seen[0, :, 0].tolist() == [[-2, -2], [-3, -3]]
    assert seen[0, :, 1].tolist() == [[1, 1], [1, 1]]


BORDER = (-2.0, -3.0)
VIEWS = usual_views(4, shift=1, mirror=True, border=BORDER)
X = torch.rand(5, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def make_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 4, 2))


def make_members(count: int) -> list[Weights]:
    torch.manual_seed(0)
    first = copy_weights(view_weights(make_model()))
    return [{name: w + 0.01 * k * torch.randn_like(w) for name, w in first.items()} for k in range(count)]


def by_hand(members: list[Weights]) -> Tensor:
    """Return the mean of the softmax over members and views."""
    model = make_model()
    answers = []
    for member in members:
        model.load_state_dict(member)
        with torch.no_grad():
            answers += [model(view.of(X, BORDER)).softmax(1) for view in VIEWS.views]
    return torch.stack(answers).mean(0)


@pytest.mark.parametrize("count", [1, 3])
def test_the_prediction_is_the_mean_over_members_and_views(count: int) -> None:
    members = make_members(count)
    ensemble = Ensemble(members, make_model, views=VIEWS)
    torch.testing.assert_close(ensemble.predict(X), by_hand(members))
    torch.testing.assert_close(ensemble.predict_batches([(X, torch.zeros(5))]), by_hand(members))
    torch.testing.assert_close(ensemble.as_module()(X), by_hand(members))


def test_a_temperature_is_of_the_mean_over_views() -> None:
    members = make_members(1)
    hot = Ensemble(members, make_model, views=VIEWS, temperatures=Temperatures(2.0))
    torch.testing.assert_close(hot.predict(X), (by_hand(members).log() / 2).softmax(1))


def test_views_are_saved_with_an_ensemble_packed_or_not(tmp_path: Path) -> None:
    members = make_members(2)
    plain = Ensemble(members, make_model, views=VIEWS)
    for ensemble, tolerance in ((plain, 1e-6), (compress(plain, Bits(8)), 0.01)):
        ensemble.save(tmp_path / "saved")
        loaded = Ensemble.load(tmp_path / "saved", make_model)
        assert loaded.views == VIEWS
        assert torch.equal(loaded.predict(X), ensemble.predict(X))
        torch.testing.assert_close(loaded.predict(X), by_hand(members), atol=tolerance, rtol=0)


def test_views_stay_with_an_ensemble_that_is_changed() -> None:
    ensemble = Ensemble(make_members(3), make_model, views=VIEWS)
    targets = torch.tensor([0, 1, 0, 1, 0])
    for changed in (ensemble.last(2), ensemble.to("cpu"), ensemble.calibrated([(X, targets)])):
        assert changed.views == VIEWS


def test_an_ensemble_is_taken_in_views_and_back_without_the_temperature_of_the_other() -> None:
    members = make_members(2)
    plain = Ensemble(members, make_model, temperatures=Temperatures(2.0))
    seen = plain.in_views(VIEWS)
    torch.testing.assert_close(seen.predict(X), by_hand(members))
    assert torch.equal(seen.in_views(None).predict(X), plain.uncalibrated().predict(X))
    assert plain.views is None
    assert "<views: 4>" in repr(seen)


def test_batch_norm_is_of_pictures_as_they_are() -> None:
    def make_normalized() -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(2), make_model())

    torch.manual_seed(0)
    plain = Ensemble([copy_weights(view_weights(make_normalized()))], make_normalized)
    fresh = plain.in_views(VIEWS).with_fresh_batch_norm([X])
    torch.testing.assert_close(fresh.members[0]["0.running_mean"], X.mean((0, 2, 3)))
    assert fresh.views == VIEWS


def test_a_cascade_of_other_views_is_refused() -> None:
    plain = Ensemble(make_members(2), make_model)
    cascade = fit_cascade(plain, [(X, torch.tensor([0, 1, 0, 1, 0]))], max_accuracy_loss=0.5)
    cascade.predict(plain, X)
    with pytest.raises(ValueError, match="fit a cascade to this ensemble"):
        cascade.predict(plain.in_views(VIEWS), X)


@pytest.mark.parametrize("task", [MultiLabel(), Regression(), Classification(ignore_index=0)])
def test_a_task_without_one_class_is_refused(task: Task) -> None:
    with pytest.raises(ValueError, match="a mean over views needs a task with one class for each example"):
        Ensemble(make_members(1), make_model, task=task, views=VIEWS)
    with pytest.raises(ValueError, match="a mean over views needs a task with one class for each example"):
        Ensemble(make_members(1), make_model, task=task).in_views(VIEWS)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([], "has an invalid `views`: expected the lists `views` and `border`"),
        ({"views": [], "border": [0.0]}, "views must have at least one entry"),
        ({"views": [{"down": 0.5}], "border": [0.0]}, "two integers and a bool, got"),
        ({"views": [{"up": 1}], "border": [0.0]}, "has an invalid `views`: "),
        ({"views": [3], "border": [0.0]}, "has an invalid `views`: "),
        ({"views": [{}], "border": ["black"]}, "border must be finite numbers, got"),
        ({"views": [{}], "border": []}, "border must be finite numbers, got"),
    ],
)
def test_views_of_a_damaged_manifest_are_refused(entry: object, message: str, tmp_path: Path) -> None:
    Ensemble(make_members(1), make_model, views=VIEWS).save(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    del manifest["content_sha256"]  # as a stranger's need not have it
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | {"views": entry}))
    with pytest.raises(StorageError, match=message):
        Ensemble.load(tmp_path, make_model)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "export"), [("e.onnx", export_onnx), ("e.pt2", export_torch)])
def test_views_are_in_exported_files(name: str, export: Callable[..., object], tmp_path: Path) -> None:
    members = make_members(2)
    export(Ensemble(members, make_model, views=VIEWS), tmp_path / name, X[:3])
    torch.testing.assert_close(answer(tmp_path / name, X), by_hand(members))


def test_the_model_is_called_by_a_function_of_the_users_own() -> None:
    def twice(model: nn.Module, batch: Tensor) -> Tensor:
        logits: Tensor = call_model(model, 2 * batch)
        return logits

    members = make_members(1)
    both = Views((View(), View(mirrored=True)))
    expected = Ensemble(members, make_model, views=both).predict(2 * X)
    torch.testing.assert_close(Ensemble(members, make_model, forward=twice, views=both).predict(X), expected)


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        (torch.zeros(3, 7), r"float32 \[3, 7\]"),
        (torch.zeros(3, 2, 4, 4, dtype=torch.uint8), "uint8"),
        ({"pixel_values": X}, "dict"),
    ],
)
def test_what_is_no_picture_is_refused(batch: object, got: str) -> None:
    with pytest.raises(ValueError, match=rf"views need images \[N, C, H, W\], got .*{got}"):
        VIEWS.call(call_model, make_model(), batch)


def test_a_border_of_other_channels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one for each of 2 channels, got \(1.0, 2.0, 3.0\)"):
        Views(VIEWS.views, (1.0, 2.0, 3.0)).call(call_model, make_model(), X)


def test_masks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one class for each image.* got torch.float32 \[5, 3, 2, 2\]"):
        VIEWS.call(call_model, nn.Conv2d(2, 3, 3), X)


def test_views_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="views must have at least one entry"):
        Views(())
    with pytest.raises(ValueError, match="must shift images of 4 x 4 pixels by less than their size"):
        View(right=-4).of(X)
    for count, shift in ((0, 1), (1, -1)):
        with pytest.raises(
            ValueError, match=f"count must be at least 1 and shift at least 0, got {count} and"
        ):
            usual_views(count, shift=shift, mirror=False)


def test_views_are_few() -> None:
    assert len(Views((View(),) * 256)) == 256
    with pytest.raises(ValueError, match="views must be at most 256, got 257; each is a forward pass"):
        Views((View(),) * 257)
    with pytest.raises(ValueError, match="border must be finite numbers"):
        Views((View(),), (10**400,))
