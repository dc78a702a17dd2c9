"""What ONNX Runtime cannot read or run is said in one line, and another form is taken where there is one."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime
import pytest
from torch import Tensor

import pfge.export.onnx
from pfge import Ensemble
from pfge.export import ExportError, export_onnx
from pfge.export.ensemble_graph import ExampleInputs
from pfge.export.onnx import open_in_runtime, possible
from tests.packed.close_members import close_members
from tests.toys import make_batch, make_mlp

X = make_batch(1, size=3)[0]
VERSION = onnxruntime.__version__


@pytest.mark.parametrize(
    ("ir_version", "opset", "reason"),
    [(99, 20, r"Unsupported model IR version: 99, max .*: \d+"), (8, 99, r"Current .* is till opset \d+")],
)
def test_a_runtime_that_is_older_than_the_file_is_to_be_updated(
    ir_version: int, opset: int, reason: str, tmp_path: Path
) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, ir_version=ir_version, opset_imports=opsets)
    (tmp_path / "e.onnx").write_bytes(model.SerializeToString())
    update = "update it with pip install --upgrade onnxruntime"
    with pytest.raises(
        ExportError, match=f"^ONNX Runtime {VERSION} is older than the file: {reason}; {update}$"
    ):
        open_in_runtime(tmp_path / "e.onnx")


def test_a_file_that_cannot_be_run_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any) -> None:
        raise RuntimeError("\nNon-zero status code returned while running Scan node")

    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: SimpleNamespace(run=run))
    inputs = ExampleInputs.of(Ensemble(close_members(2), make_mlp), X, None)
    message = (
        r"ONNX Runtime can run: Non-zero status code .* Scan node; use another layout or the torch format"
    )
    with pytest.raises(ExportError, match=message):
        open_in_runtime(tmp_path / "e.onnx")(inputs)


def test_the_first_reason_is_given_where_no_form_is_possible() -> None:
    def refuse(form: str) -> None:
        raise ExportError(f"no {form}")

    with pytest.raises(ExportError, match="no loop"):
        possible(["loop", "side by side"], refuse)


def test_the_fastest_form_is_one_that_the_runtime_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = Ensemble(close_members(2), make_mlp)

    def make(_: Ensemble, __: ExampleInputs, form: str) -> SimpleNamespace:
        return SimpleNamespace(save=lambda file: file.write_text(form))

    def open_file(file: Path) -> Callable[[ExampleInputs], Tensor]:
        if file.read_text() == "loop":
            raise ExportError("ONNX Runtime cannot read it")
        return lambda inputs: ensemble.predict(inputs.batch())

    monkeypatch.setattr(pfge.export.onnx, "_make", make)
    monkeypatch.setattr(pfge.export.onnx, "open_in_runtime", open_file)
    found = export_onnx(ensemble, tmp_path / "e.onnx", X, layout="fastest")
    assert (found.layout, list(found.seconds)) == ("side by side", ["side by side"])
    assert (tmp_path / "e.onnx").read_text() == "side by side"
    with pytest.raises(ExportError, match="ONNX Runtime cannot read it"):
        export_onnx(ensemble, tmp_path / "other.onnx", X, layout="loop")
    assert not (tmp_path / "other.onnx").exists()
