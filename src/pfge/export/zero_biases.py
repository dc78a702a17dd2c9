"""Remove biases of zero from the convolutions of an ONNX graph.

torch.onnx gives a convolution without a bias one of zeros, in the type of its inputs. A runtime cannot know
that it is constant, and so does not fold the BatchNorm behind the convolution into it.
"""

from typing import TYPE_CHECKING

import numpy

if TYPE_CHECKING:
    import onnx_ir

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_BIAS = 2  # its place among the inputs


def remove_zero_biases(model: "onnx_ir.Model") -> int:
    """Remove them, and what only they needed, in place; return how many there were."""
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    removed = 0
    for graph in model.graphs():
        for node in graph:
            if node.op_type in _CONVOLUTIONS and len(node.inputs) > _BIAS and _is_zero(node.inputs[_BIAS]):
                node.replace_input_with(_BIAS, None)
                node.resize_inputs(_BIAS)
                removed += 1
    if removed:
        RemoveUnusedNodesPass()(model)
    return removed


def _is_zero(bias: "onnx_ir.Value | None") -> bool:
    """Return whether a value is a constant of zero in another type and shape."""
    producer = None if bias is None else bias.producer()
    while producer is not None and producer.op_type in ("Expand", "CastLike", "Cast"):
        bias = producer.inputs[0]
        producer = None if bias is None else bias.producer()
    if producer is None or producer.op_type != "Constant" or "value" not in producer.attributes:
        return False
    return not numpy.any(producer.attributes["value"].as_tensor().numpy())
