"""After a plain `pip install pfge`, every command that needs an extra names it in one line."""

import ast
import json
import re
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest

import pfge
from pfge.cli.main import COMMANDS, find_extra, main
from tests.cli.captured import Captured, refused
from tests.cli.every_command import ALL, PFGE
from tests.cli.installed_python import python

# As in test_current_folder, each command runs in a process of its own, forked once torch is imported.
PROGRAM = """
import json, os, sys, traceback
import torch, pfge.lab.config.toml, pfge.lab.planner
from pfge.cli.main import main

missing, commands = set(json.loads(sys.argv[1])), json.loads(sys.argv[2])

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in missing else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

def run(command, writer):
    code = 70
    try:
        os.dup2(writer, 1), os.dup2(writer, 2)
        code = main(command)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

assert not missing & set(sys.modules), missing & set(sys.modules)
torch.set_num_threads(1)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
found = {}
for name, arguments in commands.items():
    reader, writer = os.pipe()
    pid = os.fork() or run([name, *arguments], writer)
    os.close(writer)
    with os.fdopen(reader) as printed:
        lines = printed.read().splitlines()
    found[name] = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), lines]
print(json.dumps(found))
"""


def imported_packages() -> set[str]:
    """Return the packages that an import statement of pfge names, without its own and Python's."""
    found = set()
    for file in Path(pfge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return found - {"pfge", *sys.stdlib_module_names}


def extras_by_package() -> dict[str, set[str]]:
    """Return the extras that install each package that pfge imports, by the names of installed files."""
    installed = packages_distributions()
    declared = [re.match(r'([\w-]+)[^;]*; extra == "(\w+)"', line) for line in requires("pfge") or ()]
    extras = {
        package: {found[2] for found in declared if found and found[1] in map(_dashed, installed[package])}
        for package in (imported_packages() - {"torch"}) & installed.keys()
    }
    return {package: found for package, found in extras.items() if found}


def _dashed(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


EXTRAS = extras_by_package()


@pytest.mark.slow
def test_every_command_names_the_extra_that_it_needs(copied_run: Path) -> None:  # noqa: ARG001
    assert ALL.keys() == {command.name for command in COMMANDS}
    found = json.loads(python(PROGRAM, json.dumps([*EXTRAS]), json.dumps(ALL)))
    for name, (code, lines) in found.items():
        assert (code, len(lines)) == (2, 1), (name, lines)
        needs = rf"pfge: error: pfge {name} needs the package \w+, which is not installed; "
        assert re.fullmatch(rf'{needs}pip install "pfge\[lab\]"', lines[0])


def test_each_package_is_looked_up_in_an_extra_that_installs_it() -> None:
    assert {"PIL", "sklearn", "rich", "onnxruntime", "matplotlib"} <= EXTRAS.keys()
    for package, extras in EXTRAS.items():
        assert find_extra(f"{package}.inside") in extras, package


def test_a_module_of_no_extra_is_a_bug_and_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_extra("pfge.nothing") is find_extra("numpy") is find_extra("") is None
    monkeypatch.setitem(sys.modules, "pfge.lab.run.verification", None)
    with pytest.raises(ModuleNotFoundError):
        main(["verify", "."])


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("onnx", ["export", PFGE, "out.onnx"], "export"),
        ("onnxscript", ["export", PFGE, "out.onnx"], "export"),
        ("onnxruntime", ["export", PFGE, "out.onnx"], "export"),
        ("matplotlib", ["report", ".", "--figures", "drawn"], "figures"),
        ("ray", ["compare", "--launcher", "ray", "--out", "new"], "ray"),
        ("submitit", ["compare", "--launcher", "slurm", "--out", "new"], "slurm"),
        ("mnist1d", ["compare", "--set", "data.name=mnist1d", "--out", "new"], "mnist1d"),
        ("timm", ["plan", *ALL["plan"], "--model", "timm:resnet18"], "models"),
        ("torchvision", ["plan", *ALL["plan"], "--model", "torchvision:resnet18"], "models"),
        ("PIL", ["predict", PFGE, "digit.png"], "lab"),
        ("PIL", ["compare", "--set", "data.name=folder:pictures", "--out", "new"], "lab"),
        ("sklearn", ["compare", "--set", "data.name=diabetes", "--out", "new"], "lab"),
        ("shtab", ["--completion", "zsh"], "completion"),
    ],
)
def test_an_option_names_the_extra_that_it_needs(
    copied_run: Path,  # noqa: ARG001
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    arguments: list[str],
    extra: str,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("pfge.reports.figures.plots", "pfge.export.onnx"):  # these import it at their top
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setenv("PFGE_DATA", "data")
    assert refused(capsys, arguments).endswith(f'pip install "pfge[{extra}]"')
