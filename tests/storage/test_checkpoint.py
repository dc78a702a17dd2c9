import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pfge import StorageError, load_checkpoint, save_checkpoint


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
