"""Programs that are killed, or find the disk full, at any change to the file system, and then run again."""

import errno
import shutil
from pathlib import Path

import pytest

from tests.faults.harness import KILL, Outcome, strike_everywhere

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the library to preload is compiled by gcc"),
]
SAVES = (
    "save a new ensemble",
    "save over an ensemble",
    "save a new packed ensemble",
    "save packed over an ensemble",
)


def assert_no_harm(outcome: Outcome, changes: int) -> None:
    assert len(outcome.changes) >= changes
    assert outcome.stuck == []
    assert outcome.different == []
    assert outcome.left == []


@pytest.mark.parametrize("action", [KILL, errno.ENOSPC], ids=["kill", "full disk"])
def test_an_ensemble_is_saved_after_a_fault_at_any_change(tmp_path: Path, action: int) -> None:
    outcomes = strike_everywhere(tmp_path, SAVES, action)
    assert outcomes.keys() == {*SAVES}
    for outcome in outcomes.values():
        # the member or members and the manifest, each made, written, synced and renamed
        assert_no_harm(outcome, changes=8)
        assert {"open", "write", "fsync", "rename"} <= {change.split()[0] for change in outcome.changes}
    assert any(change.startswith("mkdir") for outcome in outcomes.values() for change in outcome.changes)


def test_a_comparison_goes_on_after_a_kill_at_any_change(tmp_path: Path) -> None:
    (outcome,) = strike_everywhere(tmp_path, ["compare"]).values()
    assert_no_harm(outcome, changes=100)
    files = {
        change.split()[1] for change in outcome.changes if change.startswith(("rename", "open", "rmdir"))
    }
    assert files >= {
        ".lock",
        "config.toml",
        "data.json",
        "environment.json",
        "results.jsonl",
        "seed-1/w0.safetensors",
        "seed-1/pretrain.checkpoint",
        "seed-1/shared.checkpoint",
        "seed-1/pfge-fork.checkpoint",
        "seed-1/pfge.checkpoint",
        "seed-1/members",
        "seed-1/members/PFGE/manifest.json",
        "seed-1/ensembles/SWA/manifest.json",
        "seed-1/ensembles/PFGE",
        "seed-1/scores/w0.safetensors",
    }
