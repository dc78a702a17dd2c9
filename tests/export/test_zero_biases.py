"""Convolutions without a bias have none in the file, so that BatchNorm is folded into them."""

from pathlib import Path

import numpy
import onnx
import onnx_ir
import onnxruntime
import pytest
import torch
from torch import nn

from pfge import Ensemble
from pfge.export import export_onnx
from pfge.export.onnx import remove_zero_biases

MODEL = """
<ir_version: 9, opset_import: ["" : 20]>
agraph (float[N, 2, 8, 8] x, float[3, 2, 3, 3] w, float[3] b)
    => (float[N, 3, 6, 6] zero, float[N, 3, 6, 6] one, float[N, 3, 6, 6] given)
{
    shape = Constant <value_ints = [3]> ()
    nothing = Constant <value = float {0.0}> ()
    something = Constant <value = float {1.0}> ()
    nothing_like = CastLike (nothing, x)
    zeros = Expand (nothing_like, shape)
    something_like = CastLike (something, x)
    ones = Expand (something_like, shape)
    zero = Conv (x, w, zeros)
    one = Conv (x, w, ones)
    given = Conv (x, w, b)
}
"""


def test_a_bias_of_zero_is_removed_and_no_other() -> None:
    proto = onnx.parser.parse_model(MODEL)
    model = onnx_ir.from_proto(proto)
    assert remove_zero_biases(model) == 1
    after = onnx_ir.to_proto(model)
    nodes = [node for node in after.graph.node if node.op_type == "Conv"]
    assert [len(node.input) for node in nodes] == [2, 3, 3]
    assert sum(node.op_type == "CastLike" for node in after.graph.node) == 1  # that of the ones
    g = numpy.random.default_rng(0)
    shapes = {"x": (5, 2, 8, 8), "w": (3, 2, 3, 3), "b": (3,)}
    fed = {name: g.normal(size=shape).astype(numpy.float32) for name, shape in shapes.items()}
    before, found = (
        onnxruntime.InferenceSession(one.SerializeToString()).run(None, fed) for one in (proto, after)
    )
    for expected, answer in zip(before, found, strict=True):
        numpy.testing.assert_array_equal(answer, expected)


def make_convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
    )


@pytest.mark.slow
def test_batch_norm_is_folded_into_the_convolutions_of_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ensemble = Ensemble([dict(make_convolution().state_dict()) for _ in range(2)], make_convolution)
    export_onnx(ensemble, tmp_path / "e.onnx", torch.randn(3, 2, 4, 4), layout="side by side")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    onnxruntime.InferenceSession(tmp_path / "e.onnx", options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "BatchNormalization" not in kinds
    assert "Expand" not in kinds
    assert sum("Conv" in kind for kind in kinds) == 2
