"""No command imports anything from the current folder, unless the user names a function that lies there."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import pfge
from pfge.cli.main import COMMANDS
from tests.cli.every_command import ALL
from tests.cli.installed_python import python

# The big packages are imported once, before processes are forked that run a command each. Every import of a
# command, whether or not the module is found, must be made without the current folder on sys.path.
PROGRAM = """
import json, os, sys
import sklearn.datasets, torch
from pfge.cli.main import main

mark, commands = sys.argv[1], json.loads(sys.argv[2])
here = os.getcwd()

def watch(event, arguments):
    if event == "import" and {"", ".", here} & set(arguments[2] or sys.path):
        with open(mark, "a") as file:
            file.write(f"{arguments[0]} is looked for in the current folder\\n")

def run(command):
    code = "an exception"
    try:
        sys.addaudithook(watch)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = main(command)
    finally:
        os._exit(code if isinstance(code, int) else 70)

torch.set_num_threads(1)
found = {}
for name, arguments in commands.items():
    pid = os.fork() or run([name, *arguments])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found[name] = {"code": code, "imported": open(mark).read().splitlines() if os.path.exists(mark) else []}
    open(mark, "w").close()
print(json.dumps(found))
"""


def plant(folder: Path, mark: Path) -> None:
    """Put a module beside the run for each one that is installed, which leaves a mark when it is imported."""
    installed = {*sys.stdlib_module_names, *filter(str.isidentifier, packages_distributions())}
    for name in installed:
        (folder / f"{name}.py").write_text(
            f"print({name!r}, 'was imported', file=open({str(mark)!r}, 'a'))\n"
        )


def test_every_command_is_tried() -> None:
    assert {command.name for command in COMMANDS} == ALL.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "commands", [[name for name in ALL if name != "export"], ["export"]], ids=["all but export", "export"]
)
def test_no_command_imports_a_module_of_the_current_folder(
    copied_run: Path, tmp_path: Path, commands: list[str]
) -> None:
    plant(copied_run, tmp_path / "mark")
    arguments = json.dumps({name: ALL[name] for name in commands})
    found = json.loads(python(PROGRAM, str(tmp_path / "mark"), arguments))
    assert found == {name: {"code": 0, "imported": []} for name in commands}


@pytest.mark.slow
def test_the_report_of_the_current_folder_imports_nothing_from_it(copied_run: Path, tmp_path: Path) -> None:
    plant(copied_run, tmp_path / "mark")
    python("import sys; from pfge.cli.main import main; sys.exit(main(['report', '.']))")
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
def test_workers_import_nothing_from_the_current_folder(copied_run: Path, tmp_path: Path) -> None:
    """Each new interpreter is started by `python -c`, which would search the current folder first."""
    shutil.rmtree(copied_run / "seed-1")
    (copied_run / "results.jsonl").unlink()
    plant(copied_run, tmp_path / "mark")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom pfge.cli.main import main\nif __name__ == '__main__': sys.exit(main())\n"
    )
    subprocess.run(
        [sys.executable, program, "pretrain", "--launcher", "here:2", *ALL["pretrain"]],
        env=os.environ | {"PYTHONPATH": str(Path(pfge.__file__).parent.parent)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    assert not (tmp_path / "mark").exists()
    assert (copied_run / "seed-1" / "w0.safetensors").exists()
