"""What users see of the package: names, and how values print."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import pfge
from pfge import (
    EMA,
    FGE,
    PFGE,
    SWA,
    SWAG,
    Bits,
    Budget,
    Cascade,
    Constant,
    CosineRestarts,
    Ensemble,
    MaxLoss,
    Restart,
    Trajectory,
    Triangular,
)
from pfge.calibration import Temperature, Temperatures
from pfge.connectivity import Bezier, CurveTrace, Plane, PolygonalChain
from pfge.metrics import Difference, Reliability, SeedDifference
from pfge.schedules import Joined, LinearDecay
from pfge.tasks import CausalLM, Classification, MultiLabel, Raw, Regression
from pfge.views import View, Views

SUBMODULES = [
    "averages",
    "calibration",
    "collectors",
    "compression",
    "connectivity",
    "metrics",
    "schedules",
    "storage",
    "tasks",
    "views",
    "weights",
]
NAMES: dict[str, object] = {}
for module in (pfge, *(getattr(pfge, name) for name in SUBMODULES)):
    NAMES |= {name: getattr(module, name) for name in module.__all__}

VALUES = [
    Bits(2),
    Bits({"weight": 4}),
    Budget(700_000),
    MaxLoss(kl=0.001),
    MaxLoss(kl=0.001, nll_increase=0.01),
    Constant(0.1),
    Triangular(4, 0.1, 0.2, start="high"),
    CosineRestarts(4, 0.0, 0.2),
    LinearDecay(4, 0.2, 0.1),
    Joined(((Constant(0.1), 3), (LinearDecay(4, 0.1, 0.0), 4))),
    Temperature(1.5, converged=False),
    Temperatures(1.5, (1.0, 2.0)),
    Cascade((1, 0, 2), (0.9, 0.8), "agreement"),
    Classification(dim=-1, ignore_index=-100),
    CausalLM(ignore_index=0),
    MultiLabel(),
    Raw(),
    Regression(noise="predicted"),
    View(down=1, mirrored=True),
    Views((View(), View(right=-2)), border=(-1.0, -2.0)),
    Reliability((0.0, 0.5), (0.5, 1.0), (3, 1), (0.4, 0.9), (0.5, 1.0)),
    Difference(0.1, -0.1, 0.3),
    SeedDifference(0.1, 0.05, 3),
    CurveTrace((0.0, 1.0), {"loss": (1.0, 2.0)}, (3.0, 4.0)),
]
COLLECTORS = [
    SWA(4, phase=1, average_start=False),
    EMA(0.9, every=3),
    FGE(4, phase=2),
    PFGE(4, 8, phase=1, average_start=False, clear_momentum=False),
    SWAG(4, phase=1, rank=2, samples=3, scale=0.25, seed=7),
    SWAG(4, var_clamp=1e-9),
]
POINT = {"w": torch.zeros(2, 3), "b": torch.zeros(2)}
SHORT = "<weights of 8 numbers>"
OTHERS = [
    (Restart(POINT), f"Restart({SHORT}, clear_momentum=True)"),
    (Bezier(POINT, POINT), f"Bezier({SHORT}, {SHORT}, bends=1)"),
    (PolygonalChain(POINT, POINT, bends=2), f"PolygonalChain({SHORT}, {SHORT}, bends=2)"),
]


def test_the_package_has_few_names_and_the_rest_in_submodules() -> None:
    assert sorted(pfge.__all__) == sorted(set(pfge.__all__))
    modules = [name for name in pfge.__all__ if isinstance(getattr(pfge, name), ModuleType)]
    assert modules == SUBMODULES
    assert 20 <= len(pfge.__all__) - len(modules) <= 30


@pytest.mark.parametrize("name", ["", *SUBMODULES])
def test_every_public_name_exists(name: str) -> None:
    module = getattr(pfge, name) if name else pfge
    for public in getattr(module, "__all__", []):
        assert getattr(module, public) is not None


@pytest.mark.slow
def test_submodules_are_there_after_import_pfge() -> None:
    code = "import pfge; print(*(name for name in pfge.__all__ if hasattr(pfge, name)))"
    code += f"; print(*(len(getattr(pfge, name).__all__) > 1 for name in {SUBMODULES}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [*pfge.__all__, *["True"] * len(SUBMODULES)]


@pytest.mark.slow
def test_names_are_imported_when_they_are_asked_for() -> None:
    code = "import sys, pfge; print('torch' in sys.modules); pfge.Ensemble; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]
    assert {"Ensemble", "metrics", "__version__"} <= set(dir(pfge))
    with pytest.raises(AttributeError, match="module 'pfge' has no attribute 'Ensembles'"):
        pfge.Ensembles  # noqa: B018


def test_type_checkers_see_the_names_that_there_are() -> None:
    tree = ast.parse(Path(pfge.__file__).read_text())
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in typed.body if isinstance(node, ast.ImportFrom)]
    assert sorted(alias.asname or "" for node in imports for alias in node.names) == pfge.__all__
    for node in imports:
        for alias in node.names:
            module = importlib.import_module(str(node.module))
            assert getattr(module, alias.name) is getattr(pfge, alias.name)


def test_help_and_mistakes_do_not_wait_for_torch() -> None:
    code = "import sys; from pfge_command import main\ntry: main()\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules)"
    for arguments in (["--help"], ["compare", "--help"], ["comparr"], ["table", "--no-such-option"]):
        command = [sys.executable, "-c", code, *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        assert run.stdout.splitlines()[-1] == "False", arguments


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_prints_as_the_call_that_makes_it(value: object) -> None:
    assert eval(repr(value), NAMES) == value
    assert str(value) == repr(value)


@pytest.mark.parametrize("collector", COLLECTORS, ids=lambda value: type(value).__name__)
def test_a_collector_prints_as_the_call_that_makes_it(collector: pfge.Collector) -> None:
    made = eval(repr(collector), NAMES)
    assert repr(made) == repr(collector) == str(collector)
    settings = {name: value for name, value in vars(collector).items() if not name.startswith("_")}
    assert {name: value for name, value in vars(made).items() if not name.startswith("_")} == settings


def test_collectors_print_as_manifests_and_checkpoints_have_named_them() -> None:
    assert [str(collector) for collector in COLLECTORS[:5]] == [
        "SWA(cycle=4, phase=1, average_start=False)",
        "EMA(decay=0.9, every=3)",
        "FGE(cycle=4, phase=2)",
        "PFGE(cycle=4, period=8, phase=1, average_start=False, clear_momentum=False)",
        "SWAG(cycle=4, phase=1, rank=2, samples=3, scale=0.25, seed=7)",
    ]


@pytest.mark.parametrize(("value", "expected"), OTHERS, ids=lambda value: type(value).__name__)
def test_what_holds_tensors_prints_without_their_numbers(value: object, expected: str) -> None:
    assert repr(value) == expected


def test_a_plane_prints_without_its_numbers() -> None:
    points = tuple({"w": torch.tensor(numbers)} for numbers in ([0.0, 0.0], [1.0, 0.0], [0.0, 1.0]))
    short = "<weights of 2 numbers>"
    assert repr(Plane(points)) == f"Plane(({short}, {short}, {short}))"


def test_a_trajectory_prints_its_schedule_and_its_collectors() -> None:
    model = nn.Linear(1, 1)
    trajectory = Trajectory(model, torch.optim.SGD(model.parameters()), Constant(0.1), [FGE(2)])
    assert repr(trajectory) == "Trajectory(<Linear>, <SGD>, Constant(rate=0.1), [FGE(cycle=2, phase=0)])"


def test_an_ensemble_prints_what_is_known_of_it() -> None:
    assert (
        repr(Ensemble([POINT], nn.Identity)) == "Ensemble(<members: 1>, <torch.nn.modules.linear:Identity>)"
    )
    ensemble = Ensemble(
        [POINT, POINT], lambda: nn.Identity(), model="tiny", method="FGE(cycle=2, phase=0)", iterations=[2, 4]
    )
    expected = "Ensemble(<members: 2>, <tiny>, method='FGE(cycle=2, phase=0)', iterations=[2, 4]"
    assert repr(ensemble) == f"{expected})"
    hot = ensemble.with_members(ensemble.members, temperatures=Temperatures(2.0))
    assert repr(hot) == f"{expected}, temperatures=Temperatures(pooled=2.0, members=None, weights=None))"
