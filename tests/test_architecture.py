"""The rules of docs/architecture.md that a program can check."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfge.methods import known_rows
from tests.reports.made_run import make_run

SOURCE = Path(__file__).parent.parent / "src" / "pfge"

# Lowest first. A room may import from rooms in rows before its own, and from itself. The same holds for the
# rooms of `lab` and `reports`.
ROWS: dict[str, list[set[str]]] = {
    "": [
        {"sharding", "group_rates", "loaders"},
        {"frozen"},
        {"schedules", "weights"},
        {"averages", "finite"},
        {"live_weights"},
        {"metrics", "forward"},
        {"calibration", "batch_norm", "member_predictions", "views"},
        {"tasks"},
        {"storage"},
        {"collectors", "packed", "connectivity"},
        {"ensemble_module", "member_calibration"},
        {"trajectory", "ensemble"},
        {"cascade"},
        {"methods", "compression", "export", "integrations"},
        {"lab"},
        {"reports"},
        {"cli"},
    ],
    "lab": [
        {"user_functions", "malloc", "config"},
        {"data", "models"},
        {"run", "engine"},
        {"session", "planner"},
        {"evaluation"},
        {"training", "launch"},
        {"experiments"},
    ],
    "reports": [
        {"statistics", "printable", "noisy_mean"},
        {"verdicts"},
        {"significance", "run"},
        {"tables", "figures"},
        {"contents", "notebook"},
        {"page"},
    ],
}


def modules_imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pfge":
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("pfge.")}
    return found


def room_of(module: str, house: str) -> str | None:
    """Return the room of a house that a module lies in; None if it is elsewhere or the house itself."""
    prefix = f"pfge.{house}." if house else "pfge."
    return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None


def files() -> list[Path]:
    return [file for file in SOURCE.rglob("*.py") if file != SOURCE / "__init__.py"]


@pytest.mark.parametrize("house", ROWS)
@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_go_downwards_only(file: Path, house: str) -> None:
    module = ".".join(("pfge", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    room = room_of(module, house)
    if room is None:
        return
    (row,) = [number for number, rooms in enumerate(ROWS[house]) if room in rooms]
    imported = {found for name in modules_imported(file) if (found := room_of(name, house))}
    known = set().union(*ROWS[house])
    assert imported & known <= {room}.union(*ROWS[house][:row])


def test_every_room_of_a_house_has_its_row() -> None:
    for house, rows in ROWS.items():
        entries = (SOURCE / house).iterdir()
        rooms = {
            e.name.removesuffix(".py") for e in entries if e.suffix == ".py" or (e / "__init__.py").exists()
        }
        assert set().union(*rows) == rooms - {"__init__"}


def test_importing_pfge_loads_torch_and_safetensors_only() -> None:
    heavy = (
        "sklearn",
        "scipy",
        "rich",
        "lightning",
        "pytorch_lightning",
        "transformers",
        "accelerate",
        "peft",
        "torchvision",
        "PIL",
        "onnx",
        "torch._dynamo",
        "torch.distributed.tensor",
        "torch.distributed.fsdp",
        "pfge.lab",
        "pfge.cli",
        "pfge.integrations",
    )
    code = f"import sys, pfge; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def quoted_names(file: Path) -> set[str]:
    """Return the strings of a file that are a method's name or a starred row."""
    text = file.read_text()
    if file.suffix == ".py":
        tree = ast.parse(text)
        exported = {  # a public class may have the name of a method
            id(name)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "_PLACES")
            for name in ast.walk(node.value)
        }
        strings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in exported
        }
    else:
        strings = {match[2] for match in re.finditer(r"""(["'`])(.*?)\1""", text)}
    return strings & {*known_rows()}


def test_methods_are_named_in_their_table_only() -> None:
    sources = [file for suffix in ("py", "js", "html", "css") for file in SOURCE.rglob(f"*.{suffix}")]
    naming = [file.relative_to(SOURCE) for file in sources if quoted_names(file)]
    # A collector's own file may name its class.
    assert [file for file in naming if file.parts[0] != "collectors"] == [Path("methods", "table.py")]


def test_names_are_found_in_python_and_javascript(tmp_path: Path) -> None:
    python, script = tmp_path / "a.py", tmp_path / "a.js"
    python.write_text('__all__ = ["SWA"]\nif method == "PFGE" or name == f"{x}EMA": print("PFGE is good")\n')
    script.write_text("const isStrong = method === 'PFGE' || method === \"FGE*\"; // not SWA\n")
    assert quoted_names(python) == {"PFGE", "EMA"}
    assert quoted_names(script) == {"PFGE", "FGE*"}


def test_the_star_of_a_row_is_known_to_methods_only() -> None:
    handled = re.compile(r"""(strip|suffix|with|replace|partition|split)\(["']\*["']""")
    assert [file for file in SOURCE.rglob("*.py") if handled.search(file.read_text())] == []


HEAVY = ("lightning", "lightning_fabric", "PIL", "sklearn", "torchvision", "torchmetrics", "matplotlib")


@pytest.mark.parametrize(
    "code",
    [
        "import pfge.reports",
        "import pfge.reports.page.page",
        "from pfge.cli.main import main; assert main(['table', sys.argv[1]]) == 0",
        "from pfge.cli.main import main; assert main(['report', sys.argv[1]]) == 0",
        "from pfge.cli.main import main; assert main(['report', sys.argv[1], '--format', 'latex']) == 0",
    ],
)
def test_reports_need_the_config_and_the_results_of_the_lab_alone(code: str, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    script = f"import sys\n{code}\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_reports_import_nothing_of_the_lab_but_config_and_run() -> None:
    for file in (SOURCE / "reports").rglob("*.py"):
        for node in ast.parse(file.read_text()).body:  # an import that only types need is deeper
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pfge.lab"):
                assert (node.module or "").startswith(("pfge.lab.config", "pfge.lab.run")), file
