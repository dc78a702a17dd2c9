"""A state comes back as it was, and a file that is not as it was written is refused."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pfge import (
    EMA,
    FGE,
    PFGE,
    SWAG,
    Collector,
    StorageError,
    Trajectory,
    load_checkpoint,
    save_checkpoint,
)
from pfge.storage import checkpoint
from pfge.storage.files import read_tensors, write_tensors


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {
        "iteration": 7,
        "rates": [0.1, 1e-300, -0.0, math.inf],
        "pair": (True, None, "text"),
        0: {"integer key": torch.arange(3)},
        "0": {"integer key": torch.tensor(2.5, dtype=torch.bfloat16)},
        "empty": torch.zeros(0, 3),
        "tensor": ["tensor", "x"],
    }
    save_checkpoint(tmp_path / "state", state)
    found = load_checkpoint(tmp_path / "state")
    assert found["iteration"] == 7
    assert [value.hex() for value in found["rates"]] == [value.hex() for value in state["rates"]]
    assert found["pair"] == (True, None, "text")
    assert torch.equal(found[0]["integer key"], torch.arange(3))
    assert found["0"]["integer key"].dtype == torch.bfloat16
    assert found["empty"].shape == (0, 3)
    assert found["tensor"] == ["tensor", "x"]


def test_tensors_may_share_memory_or_be_strided(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    save_checkpoint(tmp_path / "state", [base, base[1], base.T, base])
    for found, expected in zip(
        load_checkpoint(tmp_path / "state"), [base, base[1], base.T, base], strict=True
    ):
        assert torch.equal(found, expected)


def test_a_tensor_at_several_places_is_written_once_and_is_one_tensor_again(tmp_path: Path) -> None:
    frozen, trained = torch.arange(100_000.0), torch.zeros(3)
    save_checkpoint(tmp_path / "state", {"members": [{"f": frozen, "t": trained}] * 5, "mean": {"f": frozen}})
    assert (tmp_path / "state").stat().st_size < 1.01 * frozen.nbytes
    found = load_checkpoint(tmp_path / "state")
    tensors = [member["f"] for member in found["members"]] + [found["mean"]["f"]]
    assert torch.equal(tensors[0], frozen)
    assert all(tensor is tensors[0] for tensor in tensors)


def test_tensors_that_are_equal_or_share_memory_are_not_one_tensor_afterwards(tmp_path: Path) -> None:
    base = torch.ones(3)
    save_checkpoint(tmp_path / "state", [base, base.clone(), base.detach(), base[:]])
    first, *others = load_checkpoint(tmp_path / "state")
    first.add_(1)
    assert [tensor.tolist() for tensor in others] == [[1, 1, 1]] * 3


def test_a_state_that_makes_its_tensors_when_asked_is_written_whole(tmp_path: Path) -> None:
    """Each is gone once it is encoded, so that the next could get its place in memory."""

    class Made(dict[int, torch.Tensor]):
        def items(self) -> Any:
            return ((key, torch.full((3,), float(key))) for key in self)

    save_checkpoint(tmp_path / "state", Made(dict.fromkeys(range(20), torch.zeros(0))))
    found = load_checkpoint(tmp_path / "state")
    assert [found[key].tolist() for key in found] == [[key] * 3 for key in range(20)]


def test_a_checkpoint_in_which_equal_tensors_are_written_each_is_read(tmp_path: Path) -> None:
    """As all were, before a tensor at several places was written once."""
    tree = ["list", [["tensor", "0:state.0"], ["tensor", "1:state.1"]]]
    seal(tmp_path / "state", tree, {"0:state.0": torch.ones(2), "1:state.1": torch.ones(2)})
    first, second = load_checkpoint(tmp_path / "state")
    assert first is not second
    assert torch.equal(first, second)


def make_mostly_frozen() -> tuple[Trajectory, list[Collector]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 1000), torch.nn.Linear(1000, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=1e-3, momentum=0.9)
    collectors: list[Collector] = [PFGE(2, 2), FGE(2), EMA(0.9), SWAG(2, rank=2)]
    return Trajectory(model, optimizer, None, collectors), collectors


def train_mostly_frozen(trajectory: Trajectory, until: int) -> None:
    while trajectory.iteration < until:
        inputs = torch.randn(8, 100, generator=torch.Generator().manual_seed(trajectory.iteration))
        trajectory.optimizer.zero_grad()
        (trajectory.model(inputs) - 1).square().mean().backward()
        trajectory.before_update()
        trajectory.optimizer.step()
        trajectory.after_update()


def test_a_checkpoint_of_many_members_has_frozen_weights_once_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole, expected = make_mostly_frozen()
    train_mostly_frozen(whole, 8)
    frozen = 4 * 100 * 1000
    save_checkpoint(tmp_path / "collected", whole.state_dict(training=False))
    assert (tmp_path / "collected").stat().st_size < 1.5 * frozen
    save_checkpoint(tmp_path / "state", whole.state_dict())  # with those of the model
    assert (tmp_path / "state").stat().st_size < 2.5 * frozen
    train_mostly_frozen(whole, 12)
    resumed, collectors = make_mostly_frozen()
    resumed.load_state_dict(load_checkpoint(tmp_path / "state"))
    train_mostly_frozen(resumed, 12)
    assert same(resumed.state_dict(), whole.state_dict())
    for one, two in zip(collectors, expected, strict=True):
        assert same(list(one.members()), list(two.members()))
    # Those of the members before and after, not one for each of twelve members and three means.
    save_checkpoint(tmp_path / "resumed", resumed.state_dict(training=False))
    assert (tmp_path / "resumed").stat().st_size < 3.5 * frozen


def test_a_real_optimizer_state(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_checkpoint(tmp_path / "state", optimizer.state_dict())
    found, state = load_checkpoint(tmp_path / "state"), optimizer.state_dict()
    assert found["param_groups"] == state["param_groups"]
    assert torch.equal(found["state"][1]["exp_avg"], state["state"][1]["exp_avg"])


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"got set in state\.a\.1"):
        save_checkpoint(tmp_path / "state", {"a": [1, {2}]})
    with pytest.raises(TypeError, match=r"keys must be strings or integers, got 1.5"):
        save_checkpoint(tmp_path / "state", {1.5: 0})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "state", {"n": 1})

    def half(*_: object) -> Iterator[bytes]:
        yield b"half"
        raise OSError("No space left on device")

    monkeypatch.setattr("pfge.storage.files.tensor_file", half)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path / "state", {"n": 2})
    assert load_checkpoint(tmp_path / "state") == {"n": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_missing_truncated_foreign_and_corrupted_files(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nothing is missing"):
        load_checkpoint(tmp_path / "nothing")
    path = tmp_path / "state"
    save_checkpoint(path, {"w": torch.ones(50)})
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(StorageError, match="must be a whole safetensors file"):
        load_checkpoint(path)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(StorageError, match="is corrupted"):
        load_checkpoint(path)
    path.write_text("a letter")
    with pytest.raises(StorageError, match="must be a whole safetensors file"):
        load_checkpoint(path)


def test_the_same_state_gives_the_same_bytes_with_one_key_of_metadata(tmp_path: Path) -> None:
    for name in ("first", "second"):
        save_checkpoint(tmp_path / name, {"w": torch.ones(3), "n": 1})
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    with safe_open(tmp_path / "first", framework="pt") as file:
        assert list(file.metadata()) == ["checkpoint"]


def test_a_checkpoint_of_the_format_before_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_file({}, path, {"format": "pfge-checkpoint-1", "tree": "1", "sha256": "e3b0"})
    with pytest.raises(StorageError) as caught:
        load_checkpoint(path)
    assert str(caught.value) == (
        f"{path} was written by an older version of pfge; delete it to start that stage again, or finish "
        "with that version"
    )


@pytest.mark.parametrize(
    "metadata", [None, {"checkpoint": "pfge-checkpoint-3"}, {"checkpoint": ""}, {"a": "b"}]
)
def test_a_file_of_another_format_is_no_checkpoint(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"w": torch.ones(1)}, tmp_path / "state", metadata)
    with pytest.raises(StorageError, match="must be a checkpoint of format 'pfge-checkpoint-2', found"):
        load_checkpoint(tmp_path / "state")


# Damage


SMALL = {
    "iteration": 1000,
    "w": torch.tensor([1.0, -2.0]),
    "optimizer": {"state": {0: {"m": torch.tensor(3, dtype=torch.int16)}}, "groups": [(0.1, True, None)]},
}


def same(first: Any, second: Any) -> bool:
    """Return whether two states are equal in types, order and bits."""
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return repr(first) == repr(second)


@pytest.mark.slow
def test_every_flipped_bit_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_checkpoint(path, SMALL)
    whole = path.read_bytes()
    refused = 0
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert same(load_checkpoint(path), SMALL), f"bit {bit} changes the state"
        except StorageError:
            refused += 1
    assert refused > 0.95 * 8 * len(whole)  # not those of the spaces that fill up the header


def seal(path: Path, tree: Any, tensors: dict[str, torch.Tensor], digest: str | None = None) -> None:
    """Write a checkpoint of any tree; its digest is right if none is given."""
    text = tree if isinstance(tree, str) else json.dumps(tree)
    digest = digest or checkpoint._digest(text, tensors)
    write_tensors(path, tensors, {checkpoint.KEY: f"{checkpoint.FORMAT}\n{digest}\n{text}"})


def edited(tree: Any, chosen: random.Random) -> Any:
    """Return a tree with one of its parts replaced, doubled, or left out."""
    others = (
        None,
        True,
        7,
        -1.5,
        "tensor",
        "dict",
        [],
        {},
        [[]],
        ["dict", 3],
        ["tensor", "x"],
        [{}, 1],
        [1, 2, 3],
    )
    if not isinstance(tree, list) or not tree or chosen.random() < 0.2:
        return chosen.choice(others)
    place = chosen.randrange(len(tree))
    kind = chosen.random()
    if kind < 0.15:
        return tree[:place] + tree[place + 1 :]
    if kind < 0.3:
        return [*tree, tree[place]]
    return [*tree[:place], edited(tree[place], chosen), *tree[place + 1 :]]


@pytest.mark.slow
def test_every_edit_of_the_tree_is_found(tmp_path: Path) -> None:
    """Without a new digest all are; with one, what comes out is a state, or it is refused."""
    path, chosen = tmp_path / "state", random.Random(5)
    save_checkpoint(path, SMALL)
    tensors, metadata = read_tensors(path)
    form, digest, text = metadata[checkpoint.KEY].split("\n")
    assert form == checkpoint.FORMAT
    refused = 0
    for _ in range(500):
        tree = edited(json.loads(text), chosen)
        if json.dumps(tree) == text:
            continue
        seal(path, tree, tensors, digest)
        with pytest.raises(StorageError, match="is corrupted"):
            load_checkpoint(path)
        seal(path, tree, tensors)
        try:
            save_checkpoint(path, load_checkpoint(path))
        except StorageError:
            refused += 1
    assert refused > 300


ONE = {"0:state": torch.ones(1)}


@pytest.mark.parametrize(
    ("tree", "tensors", "message"),
    [
        (
            ["list", [["tensor", "0:state"], ["tensor", "0:state"]]],
            ONE | {"1:state": torch.zeros(1)},
            "nothing refers to the tensor '1:state'",
        ),
        (["tensor", "1:state"], ONE, "neither a value nor one of its tensors"),
        (["tensor", ["0:state"]], ONE, "neither a value nor one of its tensors"),
        (3, ONE, "nothing refers to the tensor '0:state'"),
        (["dict", [["a", 1], ["a", 2]]], {}, "pairs of different keys"),
        (["dict", [[["a"], 1]]], {}, "pairs of different keys"),
        (["dict", [[True, 1]]], {}, "pairs of different keys"),
        (["dict", [[1.5, 1]]], {}, "pairs of different keys"),
        (["dict", {"a": 1}], {}, "neither a value nor"),
        (["set", []], {}, "neither a value nor"),
        ({"a": 1}, {}, "neither a value nor"),
        ("[", {}, "must hold a state as save_checkpoint writes it, but Expecting value"),
        ("1" * 5000, {}, "must hold a state as save_checkpoint writes it, but Exceeds the limit"),
        ("[" * 100_000, {}, "must hold a state as save_checkpoint writes it, but"),
        ('["list", [' * 101 + "]]" * 101, {}, "is nested more than 100 deep"),
    ],
)
def test_a_tree_of_another_shape_is_refused(
    tmp_path: Path, tree: Any, tensors: dict[str, torch.Tensor], message: str
) -> None:
    seal(tmp_path / "state", tree, tensors)
    with pytest.raises(StorageError, match=message):
        load_checkpoint(tmp_path / "state")


def test_a_state_may_be_nested_a_hundred_deep_and_no_deeper(tmp_path: Path) -> None:
    state: list[Any] = []
    for _ in range(99):
        state = [state]
    save_checkpoint(tmp_path / "state", state)
    assert load_checkpoint(tmp_path / "state") == state
    with pytest.raises(ValueError, match=r"must be nested at most 100 deep, got more in state\.0\.0"):
        save_checkpoint(tmp_path / "state", [state])
    state.append(state)
    with pytest.raises(ValueError, match="must be nested at most 100 deep"):
        save_checkpoint(tmp_path / "state", state)
