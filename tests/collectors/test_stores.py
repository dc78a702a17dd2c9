from pathlib import Path

import pytest
from torch import distributed

from pfge import FGE, StorageError
from pfge.collectors import stores
from pfge.collectors.stores import FolderStore
from pfge.storage.ensemble_folder import EnsembleFolder
from pfge.weights import view_weights
from tests.toys import assert_same_weights, make_mlp, train


def pretend_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: rank)


def write_members(folder: Path, *seeds: int) -> None:
    store = FolderStore(folder, writes=True)
    store.begin("FGE")
    for seed in seeds:
        store.append(seed, view_weights(make_mlp(seed)))


def test_a_follower_counts_members_without_writing_them(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "members", writes=False)
    store.begin("FGE")
    store.append(2, {})
    store.append(4, {})
    assert store.iterations == [2, 4]
    assert not (tmp_path / "members").exists()


def test_a_follower_reads_the_members_that_it_has_counted(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, writes=False)
    assert list(store.members()) == []
    store.load_state_dict({"iterations": [1, 2]})
    write_members(tmp_path, 1, 2, 3)
    members = store.members()
    assert len(members) == 2
    for seed, member in zip((1, 2), members, strict=True):
        assert_same_weights(member, view_weights(make_mlp(seed)))


def test_a_follower_waits_for_members_that_are_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path, writes=False)
    store.append(1, {})
    monkeypatch.setattr(stores.time, "sleep", lambda _: write_members(tmp_path, 1))
    assert_same_weights(store.members()[0], view_weights(make_mlp(1)))


def test_a_follower_that_resumed_waits_until_later_members_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_members(tmp_path, 1, 2)  # before the run was killed, after a checkpoint with the first of them
    writer, follower = FolderStore(tmp_path, writes=True), FolderStore(tmp_path, writes=False)
    for store in (writer, follower):
        store.load_state_dict({"iterations": [1]})
    assert len(follower.members()) == 1
    follower.append(2, {})
    other = view_weights(make_mlp(7))
    monkeypatch.setattr(stores.time, "sleep", lambda _: writer.append(2, other))
    assert_same_weights(follower.members()[1], other)


def test_a_follower_does_not_wait_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_members(tmp_path, 1)
    store = FolderStore(tmp_path, writes=False)
    store.load_state_dict({"iterations": [1, 2]})
    monkeypatch.setattr(stores, "PATIENCE", 0.05)
    with pytest.raises(
        StorageError,
        match=r"iterations \[1, 2\], which .*rank 0 writes, but holds those of \[1\] after",
    ):
        store.members()


def test_a_follower_continues_from_the_state_that_the_first_saved(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, writes=False)
    store.load_state_dict({"iterations": [2, 4]})
    store.append(6, {})
    assert store.state_dict() == {"iterations": [2, 4, 6]}
    store.begin("FGE")
    assert store.iterations == []


def test_only_the_process_of_rank_0_writes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (1, 0):
        collector = FGE(2, store=tmp_path / "members")  # before there is a process group
        with monkeypatch.context() as patch:
            pretend_rank(patch, rank)
            train(make_mlp(), [collector], 4)
        assert collector.iterations == [2, 4]
        assert (tmp_path / "members").exists() == (rank == 0)
    assert EnsembleFolder.open(tmp_path / "members").iterations == [2, 4]


def test_a_process_that_resumes_follows_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_members(tmp_path, 1)
    pretend_rank(monkeypatch, 1)
    store = FolderStore(tmp_path)
    store.load_state_dict({"iterations": [1]})
    store.append(2, {})
    assert store.state_dict() == {"iterations": [1, 2]}
    assert EnsembleFolder.open(tmp_path).iterations == [1]


def test_only_the_process_of_rank_0_overwrites_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_members(tmp_path, 1, 2, 3)
    for rank, expected in ((1, [1, 2, 3]), (0, [2, 4])):
        store = FolderStore(str(tmp_path), overwrite=True)
        with monkeypatch.context() as patch:
            pretend_rank(patch, rank)
            train(make_mlp(), [FGE(2, store=store)], 4)
        assert store.iterations == [2, 4]
        assert EnsembleFolder.open(tmp_path).iterations == expected


def test_a_follower_waits_until_the_members_of_the_run_before_are_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_members(tmp_path, 1, 2)
    pretend_rank(monkeypatch, 1)
    store = FolderStore(tmp_path, overwrite=True)
    store.begin("FGE")
    store.append(1, {})

    def overwrite(_: float) -> None:
        writer = FolderStore(tmp_path, writes=True, overwrite=True)
        writer.begin("FGE")
        writer.append(1, view_weights(make_mlp(7)))

    monkeypatch.setattr(stores.time, "sleep", overwrite)
    assert_same_weights(store.members()[0], view_weights(make_mlp(7)))


def test_a_folder_with_members_is_refused_with_a_remedy_for_several_processes(tmp_path: Path) -> None:
    write_members(tmp_path, 1)
    remedy = r"give store=pfge\.collectors\.FolderStore\(path, overwrite=True\)$"
    with pytest.raises(StorageError, match=f"holds 1 members; resume .* or {remedy}"):
        train(make_mlp(), [FGE(2, store=tmp_path)], 2)


def test_where_each_process_trains_a_model_of_its_own_each_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_rank(monkeypatch, 1)
    train(make_mlp(), [FGE(2, store=FolderStore(str(tmp_path / "of rank 1"), writes=True))], 4)
    assert EnsembleFolder.open(tmp_path / "of rank 1").iterations == [2, 4]


def test_a_loop_that_was_killed_before_its_first_checkpoint_may_begin_again(tmp_path: Path) -> None:
    def loop(iterations: int, *, overwrite: bool) -> dict[str, bytes]:
        store = FolderStore(tmp_path, writes=True, overwrite=overwrite)
        train(make_mlp(0), [FGE(2, store=store)], iterations)
        return {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    whole = loop(6, overwrite=False)
    write_members(tmp_path / "other", 1)
    for file in (tmp_path / "other").iterdir():
        file.rename(tmp_path / file.name)  # what another loop left
    (tmp_path / "other").rmdir()
    with pytest.raises(StorageError, match=r"holds 1 members; .*FolderStore\(path, writes=True, over"):
        loop(6, overwrite=False)
    assert len(loop(4, overwrite=True)) == 1 + 2
    assert loop(6, overwrite=True) == whole
