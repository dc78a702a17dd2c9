"""The rules of docs/architecture.md that a program can check."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfge.methods import known_rows
from tests.reports.made_run import make_run

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "pfge"

# Lowest first. A room may import from rooms in rows before its own, and from itself. The same holds for the
# rooms of `lab` and `reports`.
ROWS: dict[str, list[set[str]]] = {
    "": [
        {"errors"},
        {"sharding", "rounding"},
        {"schedules", "weights"},
        {"averages"},
        {"metrics", "forward"},
        {"calibration", "batch_norm", "views"},
        {"tasks"},
        {"storage", "prediction"},
        {"collectors", "packed", "connectivity"},
        {"ensemble_module"},
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
        {"statistics", "printable", "appearance"},
        {"verdicts", "run"},
        {"tables", "figures"},
        {"contents", "summary"},
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


def imported_test_modules(file: Path) -> set[str]:
    """Return the test modules that a file imports, or imports something from."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module or ''}.{alias.name}" for alias in node.names}
    return {found[0] for name in names if (found := re.match(r"(\w*\.)*?test_\w+", name))}


ITS_TESTS_ARE_ROWS = {"integrations/table.py: tests.integrations.test_conformance"}
"""The table of a page, whose rows are the names of a module's tests."""


def test_no_test_module_is_imported() -> None:
    found = {
        f"{file.relative_to(TESTS).as_posix()}: {module}"
        for file in TESTS.rglob("*.py")
        for module in imported_test_modules(file)
    }
    assert found == ITS_TESTS_ARE_ROWS


def test_imports_of_test_modules_are_found(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        "import tests.test_a\nfrom tests.cli.test_b import x\nfrom tests.cli import test_c, captured\n"
        "from . import test_d\nfrom .test_e import y\nfrom tests.toys import make_mlp\n"
        "def test_f():\n    import tests.lab.test_g\n"
    )
    assert imported_test_modules(file) == {
        "tests.test_a",
        "tests.cli.test_b",
        "tests.cli.test_c",
        ".test_d",
        "test_e",
        "tests.lab.test_g",
    }


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


NAMING = [Path("methods", "table.py"), Path("reports", "appearance.py")]
"""What methods compute, and how they look."""


def test_methods_are_named_in_their_tables_only() -> None:
    sources = [file for suffix in ("py", "js", "html", "css") for file in SOURCE.rglob(f"*.{suffix}")]
    naming = [file.relative_to(SOURCE) for file in sources if quoted_names(file)]
    # A collector's own file may name its class.
    assert sorted(file for file in naming if file.parts[0] != "collectors") == NAMING


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import pfge.reports",
        "import pfge.reports.page",
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


OPENERS = {
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "safe_open",
    "load_file",
    "fromfile",
}
OPENERS |= {"loadtxt", "genfromtxt", "memmap", "ZipFile", "is_zipfile", "fdopen", "FileIO", "copyfile"}
LOADERS = {"np", "numpy", "torch", "json", "tomllib", "pickle", "torch.export"}
"""Modules whose `load` takes a file."""

OPENED_ELSEWHERE = {
    # regular_only itself, and files that are opened by it
    "storage/files.py: os.open(path, flags | waits | getattr(os, 'O_CLOEXEC', 0), 438)",
    "storage/files.py: safe_open(require_regular(path), framework='pt')",
    "lab/data/single_inputs.py: np.load(file, allow_pickle=False)",
    "lab/data/pictures.py: Image.open(file)",
    "lab/data/published.py: gzip.open(opened)",
    "lab/training/checkpoint_files.py: zipfile.is_zipfile(file)",
    "lab/training/checkpoint_files.py: zipfile.ZipFile(file)",
    "lab/training/checkpoint_files.py: torch.load(file, map_location='cpu', weights_only=True)",
    # folders, and temporary files, which have new names
    "storage/files.py: os.open(folder, os.O_RDONLY)",
    "storage/files.py: os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 438)",
    "storage/files.py: os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)",
    "storage/files.py: os.open(path, os.O_RDONLY)",
    "storage/files.py: temporary.write_text(text, encoding='utf-8')",
    "storage/files.py: path.open('wb', buffering=1 << 20)",
    "export/torch_export.py: file.open('wb')",
    "export/torch_export.py: file.open('rb')",
    "export/torch_export.py: torch.export.load(opened)",
    "lab/data/published.py: target.open('wb')",
    "lab/data/published.py: tarfile.open(archive_path)",
    # memory, and files of pfge, of scikit-learn and of the system
    "lab/evaluation/corruptions.py: Image.open(file)",
    "lab/data/packaged.py: np.loadtxt(file, delimiter=',')",
    "lab/run/folder.py: Path('/proc/cpuinfo').read_text(encoding='utf-8')",
    "reports/page.py: (files('pfge.reports') / 'assets' / name).read_text(encoding='utf-8')",
    "reports/tables/methods.py: (files('pfge.reports.tables') / 'paper.toml').read_text(encoding='utf-8')",
    "cli/main.py: Path(os.devnull).open('w', encoding='utf-8')",
    "cli/main.py: os.open(os.devnull, os.O_WRONLY)",
}


def calls_that_open_files(file: Path) -> set[str]:
    """Return the calls of a file that open files, but for those with the opener of regular files."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        text = ast.unparse(node.func)
        module, _, name = text.rpartition(".")
        opens = name in OPENERS or (name == "load" and module in LOADERS)
        has_opener = any(k.arg == "opener" and ast.unparse(k.value) == "regular_only" for k in node.keywords)
        # pfge's own: a folder of an ensemble has a method `open`, and the function `write_text` is atomic.
        is_other = module.endswith("Folder") or text == "write_text"
        if opens and not has_opener and not is_other:
            found.add(ast.unparse(node))
    return found


def test_files_are_opened_by_what_opens_regular_files_only() -> None:
    found = {
        f"{file.relative_to(SOURCE).as_posix()}: {call}"
        for file in SOURCE.rglob("*.py")
        for call in calls_that_open_files(file)
    }
    assert found == OPENED_ELSEWHERE


def test_calls_that_open_files_are_found(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        "open(p)\nPath(p).open()\np.read_text()\nnp.load(p)\nx.load(p)\nopen_regular(p)\n"
        "open(p, 'a', opener=regular_only)\nopen(p, opener=other)\nEnsembleFolder.open(p)\nwrite_text(p)\n"
    )
    assert calls_that_open_files(file) == {
        "open(p)",
        "Path(p).open()",
        "p.read_text()",
        "np.load(p)",
        "open(p, opener=other)",
    }
