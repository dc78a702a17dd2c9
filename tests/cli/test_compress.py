import argparse
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pfge import Ensemble
from pfge.cli.arguments import parse_bytes
from pfge.cli.compress import parse_group
from pfge.cli.main import main
from pfge.compression import Bits, Budget, compress
from pfge.lab.config.settings import EngineSettings
from pfge.lab.data import load_data, validation_from_test
from pfge.lab.engine import Engine
from pfge.metrics import kl_divergence, negative_log_likelihood
from pfge.packed import PackedMembers, PackSettings, pack_members
from tests.lab.tiny import small_conv
from tests.packed.close_members import close_members
from tests.toys import assert_same_weights, make_mlp

MEMBERS = close_members(spread=0.02)
Captured = pytest.CaptureFixture[str]


def placed_conv() -> nn.Module:
    return Engine(EngineSettings(accelerator="cpu")).place(small_conv())


@pytest.fixture(scope="module")
def validation() -> tuple[Tensor, Tensor]:
    splits = load_data("digits")
    images, _ = validation_from_test(splits.test, 0)
    return splits.normalization(images.images), images.labels  # type: ignore[union-attr]


def differences(original: Path, compressed: Path, validation: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return KL and the increase of NLL, both recomputed from the files.

    In the memory format of the command, as rounding differs between formats by more than 1e-8 of KL.
    """
    inputs, labels = validation[0].to(memory_format=torch.channels_last), validation[1]
    before, after = (Ensemble.load(path, placed_conv).predict(inputs) for path in (original, compressed))
    increase = negative_log_likelihood(after, labels) - negative_log_likelihood(before, labels)
    return kl_divergence(before, after), increase


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ensemble; the command prints warnings in its own way."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    Ensemble(MEMBERS, make_mlp, method="PFGE").save(tmp_path / "whole")
    return tmp_path


def test_a_compressed_copy_is_written(folder: Path, capsys: Captured) -> None:
    arguments = ["--delta-bits", "2", "--base-bits", "16", "--group", "8", "--small-bits", "16"]
    assert main(["compress", str(folder / "whole"), str(folder / "small"), *arguments]) == 0
    loaded = Ensemble.load(folder / "small", make_mlp)
    packed = pack_members(MEMBERS, 2, PackSettings(16, 8, 16))
    for one, two in zip(loaded.members, packed, strict=True):
        assert_same_weights(one, two)
    assert (loaded.method, loaded.model) == ("PFGE", "tests.toys:make_mlp")
    files = sum(file.stat().st_size for file in (folder / "small").iterdir())
    whole = 4 * (99 * 4 + 8)
    expected = (
        f"{whole:,} bytes before, {packed.nbytes:,} after ({packed.nbytes / whole * 4:.2f} of one member)"
    )
    printed = capsys.readouterr().out
    assert f"4 members: {expected}, {files:,} on disk" in printed
    assert "validation" not in printed


def test_without_a_group_each_output_channel_has_a_step(folder: Path) -> None:
    assert main(["compress", str(folder / "whole"), str(folder / "small"), "--group", "none"]) == 0
    packed = pack_members(MEMBERS, 3, PackSettings(group=None))
    assert_same_weights(Ensemble.load(folder / "small", make_mlp).members[3], packed[3])


def test_a_budget_is_kept(folder: Path) -> None:
    arguments = ["compress", str(folder / "whole"), str(folder / "small"), "--budget", "1kB"]
    assert main([*arguments, "--small-bits", "32"]) == 0
    assert 950 < Ensemble.load(folder / "small", make_mlp).nbytes <= 1000
    assert main(arguments) == 0
    assert Ensemble.load(folder / "small", make_mlp).nbytes <= 1000


def test_a_budget_that_nobody_can_meet_is_one_line(folder: Path, capsys: Captured) -> None:
    assert main(["compress", str(folder / "whole"), str(folder / "small"), "--budget", "10"]) == 2
    assert "pfge: error: --budget must be at least" in capsys.readouterr().err
    assert not (folder / "small").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--delta-bits", "2", "--budget", "1kB"], "--delta-bits and --budget"),
        (["--delta-bits", "2", "--max-nll-increase", "0.1"], "--delta-bits and --max-nll-increase"),
        (["--budget", "1kB", "--max-kl", "0.1"], "--budget and --max-kl"),
    ],
)
def test_two_targets_are_refused(folder: Path, capsys: Captured, options: list[str], named: str) -> None:
    assert main(["compress", str(folder / "whole"), str(folder / "small"), *options]) == 2
    assert f"pfge: error: bits must be chosen by one option, got {named}" in capsys.readouterr().err


def test_a_budget_of_files_is_that_of_the_folder(folder: Path, capsys: Captured) -> None:
    arguments = ["compress", str(folder / "whole"), str(folder / "small"), "--files"]
    assert main(arguments) == 2
    assert (
        "pfge: error: --files changes what --budget counts, but --budget is missing"
        in capsys.readouterr().err
    )
    assert main([*arguments, "--budget", "3kB"]) == 0
    assert sum(file.stat().st_size for file in (folder / "small").iterdir()) <= 3000


def test_a_limit_that_nothing_can_keep_is_one_line(folder: Path, capsys: Captured) -> None:
    assert main(["compress", str(folder / "whole"), str(folder / "small"), "--max-kl", "-1"]) == 2
    assert "pfge: error: --max-kl must be above 0, got -1.0" in capsys.readouterr().err


def test_the_current_folder_can_be_written_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = folder / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert main(["compress", str(folder / "whole"), "."]) == 0
    assert len(Ensemble.load(here, make_mlp)) == len(Ensemble.load(folder / "whole", make_mlp))


def test_the_original_is_not_overwritten(folder: Path, capsys: Captured) -> None:
    assert main(["compress", str(folder / "whole"), str(folder / "small" / ".." / "whole")]) == 2
    assert "OUT and ENSEMBLE must be different folders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"), [("700", 700), ("1.5kB", 1500), ("2MB", 2_000_000), ("1GB", 1_000_000_000)]
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["much", "", "MB", "inf", "3 bytes"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number of bytes such as 700kB or 2MB"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "expected"), [("none", "none"), ("16", 16)])
def test_groups_are_read(text: str, expected: int | str) -> None:
    assert parse_group(text) == expected


def test_what_is_no_group_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="'all' must be a number, or none"):
        parse_group("all")


def test_a_folder_of_other_files_is_refused_and_left_alone(folder: Path, capsys: Captured) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("important")
    assert main(["compress", str(folder / "whole"), str(folder / "mine")]) == 2
    assert "holds other files and no ensemble; choose an empty or new folder" in capsys.readouterr().err
    assert [file.name for file in (folder / "mine").iterdir()] == ["thesis.txt"]


def test_an_ensemble_that_is_there_is_replaced(folder: Path) -> None:
    for bits in ("4", "2"):
        arguments = ["compress", str(folder / "whole"), str(folder / "small"), "--delta-bits", bits]
        assert main(arguments) == 0
    packed = pack_members(MEMBERS, 2, PackSettings())
    assert_same_weights(Ensemble.load(folder / "small", make_mlp).members[0], packed[0])
    assert len(list((folder / "small").iterdir())) == 2  # the manifest and the members


# With the data of a run


@pytest.mark.slow
def test_a_divergence_is_kept_and_printed(
    pfge: Path, folder: Path, validation: tuple[Tensor, Tensor], capsys: Captured
) -> None:
    sizes = []
    for most in (1e-8, 1e-3):
        assert main(["compress", str(pfge), str(folder / "small"), "--max-kl", str(most)]) == 0
        kl, increase = differences(pfge, folder / "small", validation)
        assert kl <= most
        found = re.search(
            r"On 398 validation examples: KL (\S+) from the original's predictions, NLL ([+-]\S+)",
            (captured := capsys.readouterr()).out,
        )
        assert found is not None
        assert re.search(r"^tried [\d,]+ bytes: KL \d\.\d{6}$", captured.err, re.MULTILINE)
        assert [float(number) for number in found.groups()] == pytest.approx([kl, increase], abs=1e-6)
        sizes.append(Ensemble.load(folder / "small", small_conv).nbytes)
    assert sizes[0] > sizes[1]


@pytest.mark.slow
def test_a_loss_of_likelihood_is_kept(pfge: Path, folder: Path, validation: tuple[Tensor, Tensor]) -> None:
    assert main(["compress", str(pfge), str(folder / "small"), "--max-nll-increase", "0.0001"]) == 0
    assert differences(pfge, folder / "small", validation)[1] <= 0.0001


def test_refreshing_recomputes_the_statistics_and_lowers_the_divergence(
    pfge: Path, folder: Path, finished: Path, validation: tuple[Tensor, Tensor]
) -> None:
    whole = str(pfge)
    assert main(["compress", whole, str(folder / "plain"), "--delta-bits", "1"]) == 0
    assert main(["compress", whole, str(folder / "fresh"), "--delta-bits", "1", "--refresh"]) == 0
    plain, fresh = (Ensemble.load(folder / name, small_conv) for name in ("plain", "fresh"))
    (name,) = [name for name in plain.members[0] if name.endswith("running_mean")][:1]
    assert not torch.equal(plain.members[0][name], fresh.members[0][name])
    kl = [differences(pfge, folder / name, validation)[0] for name in ("plain", "fresh")]
    assert kl[1] < kl[0]
    # The same from outside of the run.
    shutil.copytree(pfge, folder / "copy")
    arguments = ["--delta-bits", "1", "--refresh", "--config", str(finished / "config.toml")]
    assert main(["compress", str(folder / "copy"), str(folder / "again"), *arguments]) == 0
    assert_same_weights(Ensemble.load(folder / "again", small_conv).members[2], fresh.members[2])


def test_distillation_comes_nearer_to_the_original_and_leaves_no_checkpoint(
    pfge: Path,
    folder: Path,
    validation: tuple[Tensor, Tensor],
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pfge.lab.run.progress.SECONDS_BETWEEN_LINES", 0)  # lines, however quick the work is
    for name, option in (("plain", []), ("distilled", ["--distil", "20"])):
        arguments = ["compress", str(pfge), str(folder / name), "--delta-bits", "1", *option]
        assert main(arguments) == 0
    shown = re.findall(r"^distillation: (\d+)/80 in \d+ s  KL \S+$", capsys.readouterr().err, re.MULTILINE)
    assert [int(done) for done in shown] == [*range(1, 81)]  # 20 iterations for each of 4 members
    kl = [differences(pfge, folder / name, validation)[0] for name in ("plain", "distilled")]
    assert kl[1] < kl[0]
    sizes = [Ensemble.load(folder / name, small_conv).nbytes for name in ("plain", "distilled")]
    assert sizes[0] == sizes[1]
    assert not list(folder.glob("*.checkpoint"))
    assert main(["compress", str(pfge), str(folder / "plain"), "--distil", "0"]) == 2
    assert "--distil must be at least 1 iteration, got 0" in capsys.readouterr().err


@pytest.mark.slow
def test_a_budget_takes_the_better_weights_where_data_is_known(
    pfge: Path, folder: Path, validation: tuple[Tensor, Tensor]
) -> None:
    ensemble = Ensemble.load(pfge, small_conv)
    even = compress(ensemble, Bits(2))
    expected = compress(ensemble, Budget(even.nbytes + 500), validation=[validation])
    assert main(["compress", str(pfge), str(folder / "small"), "--budget", str(even.nbytes + 500)]) == 0
    found = Ensemble.load(folder / "small", small_conv).members
    assert isinstance(found, PackedMembers)
    assert_same_weights(found[1], expected.members[1])


def without_validation(finished: Path, folder: Path) -> Path:
    """A run whose config has no validation data."""
    shutil.copytree(finished, folder / "run")
    config = folder / "run" / "config.toml"
    _, _, settings = config.read_text().partition("\n")  # without the line that states their digest
    config.write_text(settings.replace("validation_from_test = true", "validation_from_test = false"))
    (folder / "run" / "data.json").unlink()  # of the data with halves
    return folder / "run" / "seed-1" / "ensembles" / "PFGE"


@pytest.mark.slow
@pytest.mark.filterwarnings("default:the ensemble is kept as it was before distillation")
@pytest.mark.parametrize(
    "option", [["--max-kl", "0.1"], ["--max-nll-increase", "0.1"], ["--refresh"], ["--distil", "2"]]
)
def test_what_needs_validation_data_says_so(
    finished: Path, folder: Path, capsys: Captured, option: list[str]
) -> None:
    ensemble = without_validation(finished, folder)
    assert main(["compress", str(ensemble), str(folder / "small"), *option]) == 2
    message = (
        "needs validation data that the ensemble was not trained on, and this experiment lacks it; give a "
        "config with data.validation, or --set data.validation_from_test=true"
    )
    assert message in capsys.readouterr().err
    assert not (folder / "small").exists()
    remedy = ["--set", "data.validation_from_test=true"]
    assert main(["compress", str(ensemble), str(folder / "small"), *option, *remedy]) == 0


@pytest.mark.filterwarnings("default:bits are chosen without data")  # the command prints it
def test_a_budget_does_without_validation_data(finished: Path, folder: Path, capsys: Captured) -> None:
    ensemble = without_validation(finished, folder)
    assert main(["compress", str(ensemble), str(folder / "small"), "--budget", "50kB"]) == 0
    assert "pfge: warning: bits are chosen without data: measuring what" in capsys.readouterr().err
    assert Ensemble.load(folder / "small", small_conv).nbytes <= 50_000


def test_a_quality_needs_to_know_the_data(folder: Path, capsys: Captured) -> None:
    assert main(["compress", str(folder / "whole"), str(folder / "small"), "--max-kl", "0.1"]) == 2
    assert "so its data and model are not known; give --config RUN/config.toml" in capsys.readouterr().err
