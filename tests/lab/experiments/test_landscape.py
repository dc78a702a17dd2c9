"""The plane through three members, measured, against the same by hand."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from pfge import Ensemble, load_weights, refresh_batch_norm
from pfge.cli.main import main
from pfge.lab.config.settings import ConfigError
from pfge.lab.data import load_data, take
from pfge.lab.experiments.connect import connect
from pfge.lab.experiments.landscape import make_landscape
from pfge.lab.run.progress import Reporter
from pfge.storage.files import StorageError
from pfge.weights import distance
from tests.lab.experiments.by_hand import batches, small_conv
from tests.lab.tiny import run, tiny

QUIET = Reporter(quiet=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(tiny("ensemble.methods=['SWA','FGE','PFGE']"), folder)
    small = ["connect.unit=iterations", "connect.length=2", "connect.points=2", "connect.images=50"]
    connect(folder, QUIET, overrides=small, pairs=1)
    return folder


def test_members_and_grid_are_where_they_belong(finished: Path) -> None:
    found = make_landscape(finished, QUIET, grid=3, images=100)
    members = list(Ensemble.load(finished / "seed-1" / "ensembles" / "PFGE", small_conv).members)
    names = [name for name, _ in small_conv().named_parameters()]
    one, other = ({n: member[n] for n in names} for member in members[:2])
    assert found.pfge[0] == (0, 0)
    assert found.pfge[1] == (pytest.approx(distance(one, other), rel=1e-5), pytest.approx(0, abs=1e-6))
    assert [len(row) for row in found.values] == [3, 3, 3]
    assert len(found.trajectory or []) == 8
    assert found.x[0] < min(p[0] for p in found.pfge)
    assert found.x[-1] - found.x[0] == pytest.approx(found.y[-1] - found.y[0])
    (curve,) = found.curves  # of the pair that was connected
    places = [pytest.approx(place, abs=1e-5) for place in found.pfge]
    assert curve[0] in places
    assert curve[-1] in places


def test_a_corner_of_the_grid_has_the_loss_of_its_weights(finished: Path) -> None:
    found = make_landscape(finished, QUIET, grid=2, images=100)
    from pfge.connectivity import Plane

    members = list(Ensemble.load(finished / "seed-1" / "ensembles" / "PFGE", small_conv).members)
    names = [name for name, _ in small_conv().named_parameters()]
    plane = Plane((members[0], members[1], members[2]), trained=names)
    model = small_conv()
    load_weights(model, plane.at(found.x[1], found.y[0]))
    digits = load_data("digits")
    source = batches(digits, "batch norm")
    refresh_batch_norm(model, [source.at(1)[0], source.at(2)[0]])  # 100 images
    train = take(digits.train, 100, 1, part="")
    with torch.no_grad():
        logits = model.eval()(digits.normalization(train.images))  # type: ignore[union-attr]
    assert found.values[0][1] == pytest.approx(cross_entropy(logits, train.labels).item(), rel=1e-4)


@pytest.mark.parametrize("quantity", ["train_error", "test_error"])
def test_errors_can_be_measured_too(finished: Path, quantity: str) -> None:
    found = make_landscape(finished, QUIET, grid=2, images=50, quantity=quantity)  # type: ignore[arg-type]
    values = [value for row in found.values for value in row]
    assert all(0 <= value <= 1 and round(value * 50, 6) % 1 == 0 for value in values)


def test_the_command_writes_the_numbers_and_the_picture(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["landscape", str(finished), "--grid", "2", "--images", "50", "--members", "2", "3", "4"]
    assert main(arguments) == 0
    assert json.loads((finished / "landscape.json").read_text())["members"] == [2, 3, 4]
    assert "<svg" in (finished / "landscape.svg").read_text()
    assert "landscape.svg" in capsys.readouterr().out


def test_what_cannot_be_drawn_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"three different ones of 1 to 4, got \[1, 2, 5\]"):
        make_landscape(finished, QUIET, members=(1, 2, 5))
    with pytest.raises(ConfigError, match=r"three different ones of 1 to 4, got \[1, 2, 2\]"):
        make_landscape(finished, QUIET, members=(1, 2, 2))
    with pytest.raises(ConfigError, match="grid must be at least 2 points on each side, got 1"):
        make_landscape(finished, QUIET, grid=1)
    with pytest.raises(StorageError, match="is not a run folder"):
        make_landscape(tmp_path, QUIET)
    with pytest.raises(StorageError, match="no finished PFGE for seed 9"):
        make_landscape(finished, QUIET, seed=9)


def test_a_run_of_two_members_is_refused_by_the_rule_and_not_by_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tiny("ensemble.methods=['PFGE']", "ensemble.length=8"), tmp_path / "run")
    assert main(["landscape", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == (
        "pfge: error: a plane needs three members, and PFGE of seed 1 has 2; train it for at least three "
        "periods (ensemble.length, ensemble.period)\n"
    )
