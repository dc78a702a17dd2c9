"""Views of pictures, and the mean over them, against pictures that are moved and mirrored by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pfge import Bits, Ensemble, compress
from pfge.calibration import Temperatures
from pfge.export import export_onnx, export_torch
from pfge.forward import call_model
from pfge.views import MeanOverViews, View, usual_views
from pfge.weights import Weights, copy_weights, view_weights
from tests.export.test_export import answer

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


VIEWS = usual_views(4, shift=1, mirror=True)
BORDER = (-2.0, -3.0)
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
            answers += [model(view.of(X, BORDER)).softmax(1) for view in VIEWS]
    return torch.stack(answers).mean(0)


@pytest.mark.parametrize("count", [1, 3])
def test_the_prediction_is_the_mean_over_members_and_views(count: int) -> None:
    members = make_members(count)
    ensemble = Ensemble(members, make_model, forward=MeanOverViews(VIEWS, BORDER))
    torch.testing.assert_close(ensemble.predict(X), by_hand(members))
    torch.testing.assert_close(ensemble.predict_batches([(X, torch.zeros(5))]), by_hand(members))
    torch.testing.assert_close(ensemble.as_module()(X), by_hand(members))


def test_a_temperature_is_of_the_mean_over_views() -> None:
    members = make_members(1)
    views = MeanOverViews(VIEWS, BORDER)
    hot = Ensemble(members, make_model, forward=views, temperatures=Temperatures(2.0))
    torch.testing.assert_close(hot.predict(X), (by_hand(members).log() / 2).softmax(1))


def test_views_are_given_again_to_a_saved_and_compressed_ensemble(tmp_path: Path) -> None:
    members = make_members(2)
    views = MeanOverViews(VIEWS, BORDER)
    packed = compress(Ensemble(members, make_model, forward=views), Bits(8))
    packed.save(tmp_path / "packed")
    loaded = Ensemble.load(tmp_path / "packed", make_model, forward=views)
    assert torch.equal(loaded.predict(X), packed.predict(X))
    torch.testing.assert_close(loaded.predict(X), by_hand(members), atol=0.01, rtol=0)
    assert not torch.equal(Ensemble.load(tmp_path / "packed", make_model).predict(X), packed.predict(X))


@pytest.mark.parametrize(("name", "export"), [("e.onnx", export_onnx), ("e.pt2", export_torch)])
def test_views_are_in_exported_files(name: str, export: Callable[..., object], tmp_path: Path) -> None:
    members = make_members(2)
    export(Ensemble(members, make_model, forward=MeanOverViews(VIEWS, BORDER)), tmp_path / name, X[:3])
    torch.testing.assert_close(answer(tmp_path / name, X), by_hand(members))


def test_the_model_is_called_by_a_function_of_the_users_own() -> None:
    def twice(model: nn.Module, batch: Tensor) -> Tensor:
        logits: Tensor = call_model(model, 2 * batch)
        return logits

    members = make_members(1)
    own = MeanOverViews((View(), View(mirrored=True)), forward=twice)
    plain = MeanOverViews((View(), View(mirrored=True)))
    expected = Ensemble(members, make_model, forward=plain).predict(2 * X)
    torch.testing.assert_close(Ensemble(members, make_model, forward=own).predict(X), expected)


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        (torch.zeros(3, 7), r"float32 \[3, 7\]"),
        (torch.zeros(3, 2, 4, 4, dtype=torch.uint8), "uint8"),
        ({"pixel_values": X}, "dict"),
    ],
)
def test_what_is_no_picture_is_refused(batch: object, got: str) -> None:
    with pytest.raises(ValueError, match=rf"views are of pictures \[N, C, H, W\], got .*{got}"):
        MeanOverViews(VIEWS)(make_model(), batch)


def test_a_border_of_other_channels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one for each of 2 channels, got \(1.0, 2.0, 3.0\)"):
        MeanOverViews(VIEWS, (1.0, 2.0, 3.0))(make_model(), X)


def test_masks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one class for each picture.* got torch.float32 \[5, 3, 2, 2\]"):
        MeanOverViews(VIEWS, BORDER)(nn.Conv2d(2, 3, 3), X)


def test_views_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="views must be at least one, got none"):
        MeanOverViews(())
    for count, shift in ((0, 1), (1, -1)):
        with pytest.raises(
            ValueError, match=f"count must be at least 1 and shift at least 0, got {count} and"
        ):
            usual_views(count, shift=shift, mirror=False)
