"""The command: a table at the end, and for every mistake one line and exit code 2."""

import errno
import os
import resource
import subprocess
import sys
import warnings
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pytest
import torch

import pfge
from pfge.cli.main import main, name_options
from pfge.lab.config.settings import ConfigError
from pfge.lab.config.toml import load_experiment
from pfge.lab.run.folder import RunFolder
from pfge.storage import files
from pfge.storage import files as storage
from tests.cli.captured import Captured, only_error, refused
from tests.lab.tiny import SETTINGS, Stopped, counted_steps, outcome, run, tiny


def compare(*arguments: str, settings: tuple[str, ...] = ()) -> list[str]:
    """Return the arguments of a tiny comparison."""
    overrides = [part for setting in (*SETTINGS, *settings) for part in ("--set", setting)]
    return ["compare", *arguments, *overrides]


# What works


@pytest.mark.slow
def test_a_comparison_ends_in_a_table_with_all_rows(capsys: Captured, tmp_path: Path) -> None:
    assert main(compare("--out", "out")) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert [row[:4] for row in rows[:7]] == [
        ["w0", "1", "97,152", "1x"],
        ["SWA", "1", "97,152", "1x"],
        ["FGE", "8", "777,216", "8x"],
        ["FGE*", "4", "388,608", "4x"],
        ["SWAG", "8", "777,216", "8x"],
        ["SWAG*", "4", "388,608", "4x"],
        ["PFGE", "4", "388,608", "4x"],
    ]
    assert [row[7] for row in rows[:7]] == ["0", *["16"] * 6]
    for column in (4, 5, 6):  # accuracy, NLL and ECE
        assert sum("▲" in row[column] for row in rows[:7]) >= 1
    # A verdict may take several lines.
    assert [row[0] for row in rows[7:] if row[0]] == [
        "w0",
        "SWA",
        "FGE",
        "FGE*",
        "SWAG",
        "SWAG*",
    ]  # against PFGE
    assert "Config, results and ensembles: out" in printed
    run(tiny(), tmp_path / "by hand")
    assert outcome(tmp_path / "out") == outcome(tmp_path / "by hand")


def test_a_comparison_in_two_processes_prints_what_there_is_and_what_is_missing(capsys: Captured) -> None:
    diverging = ("ensemble.methods=['SWA']", "ensemble.high=1e30", "ensemble.low=1e30")
    assert main(compare("--out", "out", "--launcher", "here:2", settings=diverging)) == 2
    printed = capsys.readouterr()
    rows = [line.split("│")[1].strip() for line in printed.out.splitlines() if "│" in line]
    assert rows == ["w0"]
    last = printed.err.splitlines()[-1]
    assert last.startswith("pfge: error: 3 parts of out are missing; seed 1: shared path failed 3 times: ")


def test_a_config_file_its_overrides_and_the_default_folder(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\n[ensemble]\nmethods = []\n[pretrain]\nepochs = 0.1\n')
    arguments = ["compare", "mine.toml", "--seeds", "4,5", "--set", "data.batch_size=100", "--download"]
    assert main(arguments) == 0
    experiment = load_experiment(tmp_path / "runs" / "mine" / "config.toml")
    assert (experiment.seeds, experiment.ensemble.methods) == ((4, 5), ())
    assert (experiment.data.batch_size, experiment.data.download) == (100, True)
    assert "mean ± standard error over 2 seeds" in capsys.readouterr().out


def test_a_model_of_the_users_own_is_found_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "my_model_of_test_main.py").write_text(
        "from torch import nn\ndef net(classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    own = ("model.name=my_model_of_test_main:net", "ensemble.methods=[]")
    assert main(compare("--out", "out", settings=own)) == 0
    assert sorted(storage.read_tensors(tmp_path / "out" / "seed-1" / "w0.safetensors")[0]) == [
        "1.bias",
        "1.weight",
    ]


def test_the_same_command_again_prints_the_same_table(capsys: Captured) -> None:
    arguments = compare("--out", "out", settings=("ensemble.methods=['PFGE']",))
    main(arguments)
    first = capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out == first


def test_a_warning_is_one_line(capsys: Captured) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        settings = ("ensemble.methods=['PFGE']", "ensemble.period=5", "ensemble.length=5")
        assert main(compare("--out", "out", settings=settings)) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert line.startswith("pfge: warning: period=5 is not a multiple of cycle=2: ")


def test_the_version_is_the_packages(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pfge {pfge.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"), [(["--help"], "compare"), (["compare", "--help"], "--set KEY=VALUE")]
)
def test_help_says_what_there_is(capsys: Captured, arguments: list[str], expected: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["comprae"], "unknown command 'comprae'; did you mean compare?"),
        (["xyz"], "unknown command 'xyz'; choose from plan, compare, "),
        (["compare", "--hlp"], "unrecognized arguments: --hlp; see pfge --help"),
        (["compress"], "the following arguments are required: ENSEMBLE, OUT; see pfge compress --help"),
    ],
)
def test_arguments_that_are_not_known_are_refused_in_one_line(
    capsys: Captured, arguments: list[str], expected: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert expected in only_error(capsys)


def test_without_a_command_help_is_printed(capsys: Captured) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: pfge")


def test_resuming_is_announced(capsys: Captured, tmp_path: Path) -> None:
    settings = ("ensemble.methods=['SWA']", "engine.checkpoint_seconds=0")
    with pytest.raises(Stopped), counted_steps(stop_after=17):
        run(tiny(*settings), tmp_path)
    assert main(compare("--out", str(tmp_path), settings=settings)) == 0
    assert "seed 1: SWA: continues from iteration 6 of 16" in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    run(tiny("ensemble.methods=['SWA']"), tmp_path / "out")
    code = "import sys; from pfge.cli.main import main; sys.exit(main(['table', 'out']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


# What does not


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("ensemble.hihg=1", "ensemble.hihg is not a setting; did you mean ensemble.high?"),
        ("ensemble.high=big", "ensemble.high must be a number, got 'big'"),
        (
            "ensemble.methods=['DE']",
            "ensemble.methods must be among SWA, EMA, FGE, FGE*, SWAG, SWAG*, PFGE, Snapshot, Star, Cosine, "
            "MCDropout, TTA, DeepEnsemble, got 'DE'",
        ),
        ("ensemble.high", "an override is written key=value, got 'ensemble.high'"),
        ("model.name=resnet21", "the depth must be 6n+2, got 21 in 'resnet21'; nearest: resnet20"),
        ("model.name=small_cnv", "unknown model 'small_cnv'; did you mean 'small_conv'?"),
        ("model.name=nowhere:net", "model 'nowhere:net' cannot be imported: No module named 'nowhere'"),
        ("model.options.depth=3", "model 'small_conv' cannot be built: got an unexpected keyword argument"),
        ("data.name=digit", "unknown data set 'digit'; did you mean 'digits'?"),
        ("data.name=cifar10", "cifar"),
        ("data.validation=5000", "validation must be a number of images from 0 to 999"),
        (
            "data.batch_size=5000",
            "an epoch must have at least one batch, got 1000 images for batch_size 5000",
        ),
        ("engine.accelerator=quantum", "the settings in [engine] do not fit this machine"),
        ("pretrain.weights=none.pt", "checkpoint none.pt does not exist; check the path"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str, expected: str
) -> None:
    monkeypatch.setenv("PFGE_DATA", str(tmp_path / "no data"))
    assert expected in refused(capsys, compare("--out", "out", settings=(setting,)))


@pytest.mark.parametrize("setting", ["data.root", "pretrain.weights", "data.name"])
def test_a_home_folder_of_nobody_is_named(capsys: Captured, setting: str) -> None:
    value = "folder:~nosuchuser/x" if setting == "data.name" else "~nosuchuser/x"
    assert refused(capsys, compare("--out", "out", settings=(f"{setting}={value}",))) == (
        f"{setting} begins with ~, but that home folder is not known, got '~nosuchuser/x'; "
        "write the whole path"
    )


def test_a_user_without_a_home_folder_needs_one_only_for_data_that_is_kept_there(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs as a user that it does not know."""

    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "PFGE_DATA"):
        monkeypatch.delenv(name, raising=False)
    assert refused(capsys, compare("--out", "out", settings=("data.name=mnist",))) == (
        "data lies in the home folder, which is unknown because HOME is not set; set HOME, PFGE_DATA or "
        "data.root to a folder"
    )
    assert main(compare("--out", "digits", settings=("ensemble.methods=[]",))) == 0


def test_a_missing_config_is_named(capsys: Captured) -> None:
    message = refused(capsys, ["compare", "none.toml"])
    assert message == "config file none.toml does not exist; give the path of a .toml file"


def test_a_folder_as_a_config_is_named(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    assert "folder.toml" in refused(capsys, ["compare", "folder.toml"])


def test_a_config_that_is_no_toml_is_named(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("name = \n")
    assert refused(capsys, ["compare", "bad.toml"]).startswith("bad.toml must be TOML: ")


def test_seeds_that_are_no_numbers_are_refused(capsys: Captured) -> None:
    assert refused(capsys, ["compare", "--seeds", "one"]) == "--seeds must be a list, got '[one]'"


def test_a_run_folder_of_another_config_is_refused(capsys: Captured, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "out").opened(tiny()):
        pass
    message = refused(capsys, compare("--out", "out", settings=("ensemble.high=0.1",)))
    assert message.startswith(
        "out was made with another config, where this one has ensemble.high = 0.1 (was 0.05)"
    )


def test_a_run_folder_with_other_files_is_refused(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    message = refused(capsys, compare("--out", "out"))
    assert message == "out holds other files and no run; give an empty or new --out"


def test_a_run_folder_in_use_is_refused(capsys: Captured, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "out").opened(tiny()):
        message = refused(capsys, compare("--out", "out"))
    assert message == "out is in use by another process; wait for it, or give another --out"


def test_a_file_in_the_way_of_a_run_folder_is_named(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    assert refused(capsys, compare("--out", "out")).startswith("out must be a folder, but it is a file")


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="there is no folder that not even root may write to"
)
def test_a_place_that_cannot_be_written_to_is_named(capsys: Captured) -> None:
    assert "'/proc/out'" in refused(capsys, compare("--out", "/proc/out"))


def test_start_weights_of_another_architecture_are_refused_with_the_names(
    capsys: Captured, tmp_path: Path
) -> None:
    torch.save({"fc.weight": torch.zeros(10, 64)}, tmp_path / "other.pt")
    message = refused(capsys, compare("--out", "out", settings=("pretrain.weights=other.pt",)))
    assert message.startswith("other.pt does not fit the model: ")
    assert "only the model has 0.weight" in message


def test_damaged_results_are_named(capsys: Captured, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "out").opened(tiny()):
        (tmp_path / "out" / "results.jsonl").write_text("no JSON\n")
    assert refused(capsys, compare("--out", "out")).startswith(
        "line 1 of out/results.jsonl cannot be used: it must be JSON"
    )


def test_a_path_that_runs_away_ends_in_one_line(capsys: Captured) -> None:
    settings = ("ensemble.low=1e30", "ensemble.high=1e30", "ensemble.methods=['FGE']")
    message = refused(capsys, compare("--out", "out", settings=settings))
    assert "holds NaN or infinity at iteration 2; lower the learning rate" in message


def test_the_place_of_an_error_is_shown_when_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"ensemble\.hihg is not a setting"):
        main(["--traceback", *compare(settings=("ensemble.hihg=1",))])


def test_an_interrupt_says_how_to_go_on(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pfge.lab.experiments.compare.find_w0", interrupt)
    assert main(compare("--out", "out")) == 130
    *_, last = capsys.readouterr().err.splitlines()
    assert last == "pfge: stopped; the same command continues from the last checkpoint"


# No space on disk

FEWER = ("ensemble.methods=['FGE','PFGE']", "ensemble.length=8", "engine.checkpoint_seconds=0")


@dataclass
class Disk:
    """Counts what is flushed to a disk that is full after some of it."""

    space: float = inf
    flushed: int = 0

    def flush(self, path: Path) -> None:
        self.flushed += 1
        if self.flushed > self.space:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], int]:
    """What a run ends with, and how often it flushes a file or a folder on the way."""
    folder, disk = tmp_path_factory.mktemp("undisturbed"), Disk()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "_flush", disk.flush)
        run(tiny(*FEWER), folder)
    return outcome(folder), disk.flushed


@pytest.mark.parametrize("share", [0.02, 0.1, 0.4, 0.7, 0.95])
def test_a_full_disk_ends_in_one_line_and_what_was_computed_stays(
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    undisturbed: tuple[dict[str, bytes], int],
    share: float,
) -> None:
    expected, flushed = undisturbed
    arguments = compare("--out", "out", settings=FEWER)
    with monkeypatch.context() as patched:
        patched.setattr(files, "_flush", Disk(space=int(share * flushed)).flush)
        assert "No space left on device: 'out" in refused(capsys, arguments)
    assert main(arguments) == 0
    assert outcome(tmp_path / "out") == expected


def test_a_file_that_truly_cannot_be_written_ends_in_one_line_and_what_was_computed_stays(
    capsys: Captured, tmp_path: Path, undisturbed: tuple[dict[str, bytes], int]
) -> None:
    """As on a full disk, the library that writes tensors meets an error of the system itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    arguments = compare("--out", "out", settings=FEWER)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))  # enough for w0, not for a checkpoint
        message = refused(capsys, arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in message
    assert main(arguments) == 0
    assert outcome(tmp_path / "out") == undisturbed[0]


@pytest.mark.slow
def test_standard_output_may_be_closed(tmp_path: Path) -> None:
    run(tiny("ensemble.methods=['SWA']"), tmp_path / "out")
    code = "import sys; from pfge.cli.main import main; sys.exit(main(['table', 'out']))"
    done = subprocess.run(
        f'{sys.executable} -c "{code}" >&-',
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CPUAllocator: not enough memory")])
def test_too_little_memory_is_said_in_one_line(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("pfge.lab.experiments.compare.compare_all", fail)
    assert "there is not enough memory" in refused(capsys, compare())


def test_the_command_stops_in_one_line_while_it_is_imported() -> None:
    code = (
        "import signal, sys, threading, os, time\n"
        "import pfge_command\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'pfge': os.kill(os.getpid(), signal.SIGINT); time.sleep(5)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "sys.exit(pfge_command.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "pfge: stopped\n")


FLAGS = {
    "delta_bits": "--delta-bits",
    "max_kl": "--max-kl",
    "max_nll_increase": "--max-nll-increase",
    "group": "--group",
    "batch_size": "--batch-size",
}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("delta_bits must be 1 to 8, got 9", "--delta-bits must be 1 to 8, got 9"),
        ("kl must be above 0, got -1.0", "--max-kl must be above 0, got -1.0"),
        ("nll_increase must be above 0", "--max-nll-increase must be above 0"),
        ("too small for delta_bits=1 and group=64", "too small for --delta-bits=1 and --group=64"),
        ("data.batch_size must be above 0", "data.batch_size must be above 0"),
        ("/runs/delta_bits/x is missing", "/runs/delta_bits/x is missing"),
        ("a group must have members, got 'delta_bits'", "a group must have members, got 'delta_bits'"),
    ],
)
def test_messages_spell_parameters_as_options(message: str, expected: str) -> None:
    assert name_options(message, FLAGS) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--delta-bits", "9"], "--delta-bits must be 1 to 8, got 9"),
        (["--max-kl", "-1"], "--max-kl must be above 0, got -1.0"),
        (["--group", "0"], "--group must be at least 1 number or None, got 0"),
        (
            ["--delta-bits", "3", "--budget", "2MB"],
            "bits must be chosen by one option, got --delta-bits and --budget; leave out all but one",
        ),
    ],
)
def test_a_wrong_option_is_refused_by_its_name_before_anything_is_read(
    tmp_path: Path, capsys: Captured, given: list[str], expected: str
) -> None:
    missing = tmp_path / "no ensemble is here"
    assert refused(capsys, ["compress", str(missing), str(tmp_path / "out"), *given]) == expected


def test_completion_is_a_script_for_the_shell(capsys: Captured) -> None:
    pytest.importorskip("shtab")
    assert main(["--completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = "COMP_WORDS=(pfge compress --delta); COMP_CWORD=2; _shtab_pfge; echo ${COMPREPLY[@]}"
    answer = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
    assert answer.stdout == "--delta-bits\n"


def test_completion_without_shtab_says_what_to_install(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert 'pip install "pfge[completion]"' in refused(capsys, ["--completion", "zsh"])
