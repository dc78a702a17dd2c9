"""The rules of docs/architecture.md that a program can check."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "pfge"

# Lowest first. A room may import from rooms in rows before its own, and from itself.
ROWS: list[set[str]] = [
    {"schedules", "weights", "forward"},
    {"metrics"},
    {"calibration", "batch_norm", "tasks"},
    {"storage"},
    {"collectors", "packed", "connectivity"},
    {"trajectory", "ensemble"},
    {"cascade"},
    {"methods", "compression", "export"},
    {"lab"},
    {"reports"},
    {"cli"},
]


def rooms_imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("pfge."):
            found.add(node.module.split(".")[1])
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("pfge.")}
    return found


def files() -> list[Path]:
    return [file for file in SOURCE.rglob("*.py") if file != SOURCE / "__init__.py"]


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_go_downwards_only(file: Path) -> None:
    room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    (row,) = [number for number, rooms in enumerate(ROWS) if room in rooms]
    assert rooms_imported(file) <= {room}.union(*ROWS[:row])


def test_importing_pfge_loads_torch_and_safetensors_only() -> None:
    heavy = (
        "sklearn",
        "scipy",
        "rich",
        "lightning",
        "torchvision",
        "torchmetrics",
        "PIL",
        "onnx",
        "torch._dynamo",
        "pfge.lab",
        "pfge.cli",
    )
    code = f"import sys, pfge; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
