"""Members of a folder that is moved to its final place when its path ends."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pfge.collectors.stores import FolderStore
from pfge.storage.ensemble_folder import EnsembleFolder
from pfge.storage.record import NO_RECORD, EnsembleRecord, InputSpec, UnknownTask
from pfge.weights import Weights, view_weights
from tests.toys import assert_same_weights, make_mlp


def doubled(weights: Weights) -> Weights:
    return {name: 2 * tensor for name, tensor in weights.items()}


def make_store(folder: Path, *, writes: bool) -> FolderStore:
    path, final = folder / "members" / "FGE", folder / "ensembles" / "FGE"
    return FolderStore(path, writes=writes, finish=doubled, final=final)


def read_by_follower(folder: Path, iterations: list[int]) -> Sequence[Weights]:
    store = make_store(folder, writes=False)
    store.load_state_dict({"iterations": iterations})
    return store.members()


def two_members(folder: Path) -> FolderStore:
    store = make_store(folder, writes=True)
    store.begin("FGE(cycle=2)")
    for number in (1, 2):
        store.append(2 * number, {"w": torch.tensor([float(number)])})
    return store


def test_members_are_written_finished(tmp_path: Path) -> None:
    store = two_members(tmp_path)
    assert [member["w"].item() for member in store.members()] == [2, 4]
    assert store.iterations == [2, 4]


def test_saving_moves_the_folder_and_says_model_and_task(tmp_path: Path) -> None:
    store = two_members(tmp_path)
    files = {file.name: file.stat().st_ino for file in (tmp_path / "members" / "FGE").glob("member-*")}
    task = UnknownTask({"name": "Other", "options": {}}, "the task is the user's own")
    record = EnsembleRecord(model="tiny", task=task, input_spec=InputSpec(classes=("a", "b")))
    store.save(record)
    saved = EnsembleFolder.open(tmp_path / "ensembles" / "FGE")
    assert (saved.record.method, saved.record.model) == ("FGE(cycle=2)", "tiny")
    assert saved.record.input_spec == record.input_spec
    assert isinstance(saved.record.task, UnknownTask)
    assert saved.record.task.entry == task.entry
    assert saved.iterations == [2, 4]
    assert {file.name: file.stat().st_ino for file in saved.path.glob("member-*")} == files
    assert not (tmp_path / "members" / "FGE").exists()
    assert [member["w"].item() for member in store.members()] == [2, 4]
    assert [member["w"].item() for member in read_by_follower(tmp_path, [2, 4])] == [2, 4]


def test_saving_replaces_what_a_killed_writer_left(tmp_path: Path) -> None:
    store = two_members(tmp_path)
    left = tmp_path / "ensembles" / "FGE"
    left.mkdir(parents=True)
    (left / "member-0123456789abcdef.safetensors").write_bytes(b"half")
    store.save(NO_RECORD)
    assert len(EnsembleFolder.open(left).entries) == 2


def test_a_state_of_members_that_were_saved_since_is_taken(tmp_path: Path) -> None:
    store = two_members(tmp_path)
    state = store.state_dict()
    store.save(NO_RECORD)
    again = make_store(tmp_path, writes=True)
    again.load_state_dict(state)
    assert again.iterations == [2, 4]


def test_a_follower_finishes_and_counts_members_without_writing_them(tmp_path: Path) -> None:
    finished: list[Weights] = []

    def finish(weights: Weights) -> Weights:
        finished.append(weights)
        return weights

    store = FolderStore(tmp_path / "members", writes=False, finish=finish)
    store.begin("FGE")
    store.append(2, view_weights(make_mlp()))
    store.append(4, view_weights(make_mlp()))
    assert store.iterations == [2, 4]
    assert len(finished) == 2  # BatchNorm statistics are gathered from all processes
    assert not (tmp_path / "members").exists()


def test_a_follower_reads_the_members_where_the_first_wrote_them(tmp_path: Path) -> None:
    folder = EnsembleFolder(tmp_path / "members" / "FGE")
    for seed in (1, 2):
        folder.append(view_weights(make_mlp(seed)), seed)
    members = read_by_follower(tmp_path, [1, 2])
    assert len(members) == 2
    for seed, member in zip((1, 2), members, strict=True):
        assert_same_weights(member, view_weights(make_mlp(seed)))


def test_a_follower_continues_from_the_state_that_the_first_saved(tmp_path: Path) -> None:
    store = make_store(tmp_path, writes=False)
    store.load_state_dict({"iterations": [2, 4]})
    store.append(6, {})
    assert store.state_dict() == {"iterations": [2, 4, 6]}


def test_a_follower_begins_without_members(tmp_path: Path) -> None:
    store = make_store(tmp_path, writes=False)
    store.append(2, {})
    store.begin("FGE")
    assert store.iterations == []


def test_a_follower_cannot_save(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="only the process that writes"):
        make_store(tmp_path, writes=False).save(NO_RECORD)
