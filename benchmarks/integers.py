"""Each member by itself in a few bits a number, as single models are shipped, to compare with.

`round_to_nearest` takes the nearest level of each weight. `round_by_inputs` rounds the weights of a filter
one after another and corrects those that are left for the error so far, weighed by the inputs that a layer
sees: GPTQ (Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", ICLR 2023), layer by layer, each with the inputs that the layers before it give once they are
rounded. Both have the same steps, those of least squared error, for groups of weights of one output channel.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from pfge import Ensemble
from pfge.packed import PackedMembers, PackedTensor, PackSettings, Quantized, pack_members
from pfge.packed.codes import pack, quantize, spread_steps
from pfge.packed.encode import TensorForm, is_packed
from pfge.weights import Weights, load_weights

GROUP = 72  # numbers; the largest part of a channel that is no longer
DAMPING = 0.01  # of the mean of the diagonal


def round_to_nearest(ensemble: Ensemble, bits: int) -> Ensemble:
    """Return the members in so many bits a weight; all else is in float16."""
    like = ensemble.members[0]
    forms = {n: TensorForm(bits, PackSettings(None, _group(t), 16)) for n, t in like.items() if is_packed(t)}
    return ensemble.with_members(pack_members(ensemble.members, forms, PackSettings(None, None, 16)))


def round_by_inputs(ensemble: Ensemble, bits: int, inputs: Tensor) -> Ensemble:
    """Return the members in so many bits a weight, rounded for these inputs."""
    nearest = round_to_nearest(ensemble, bits)
    each = [_round_layers(ensemble, member, bits, inputs) for member in ensemble.members]
    rounded = {
        name: PackedTensor(tuple(like.shape), like.dtype, None, tuple(of[name] for of in each))
        for name, like in ensemble.members[0].items()
        if is_packed(like)
    }
    tensors = nearest.members.tensors if isinstance(nearest.members, PackedMembers) else {}
    return ensemble.with_members(PackedMembers(len(ensemble), tensors | rounded))


@torch.no_grad()
def _round_layers(ensemble: Ensemble, member: Weights, bits: int, inputs: Tensor) -> dict[str, Quantized]:
    model = ensemble.build_model().eval()
    load_weights(model, member)
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            weight = layer.weight.contiguous()
            rounded = _round(weight, _products(model, layer, inputs), bits, _group(weight))
            layer.weight.copy_(rounded.numbers().view(weight.shape))
            found[f"{name}.weight".removeprefix(".")] = rounded
    if missing := [name for name, tensor in member.items() if is_packed(tensor) and name not in found]:
        raise ValueError(f"matrices must be weights of Conv2d or Linear, got {', '.join(missing)}")
    return found


class _SeenError(Exception):
    """Ends a forward pass at the layer whose inputs were asked for."""


def _products(model: nn.Module, layer: nn.Conv2d | nn.Linear, inputs: Tensor) -> Tensor:
    """Return the products of a layer's inputs with each other, [weights of a channel, same]."""
    seen: list[Tensor] = []

    def see(_: nn.Module, given: Sequence[Tensor]) -> None:
        seen.append(given[0])
        raise _SeenError

    handle = layer.register_forward_pre_hook(see)
    try:
        model(inputs)
    except _SeenError:
        pass
    finally:
        handle.remove()
    (rows,) = seen
    if isinstance(layer, nn.Conv2d):
        if isinstance(layer.padding, str):
            raise ValueError(f"convolutions must have a padding in numbers, got {layer.padding!r}")
        parts = functional.unfold(
            rows.contiguous(), layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )
        return torch.einsum("nwp,nvp->wv", parts, parts)
    return rows.T @ rows


def _round(weight: Tensor, products: Tensor, bits: int, group: int) -> Quantized:
    nearest = quantize(weight, bits, group)
    rows = weight.reshape(len(weight), -1).double()
    steps = spread_steps(nearest.steps.float(), group, rows.numel()).view(rows.shape).double()
    outermost = ((1 << bits) - 1) / 2
    damped = products.double() + DAMPING * products.diagonal().double().mean() * torch.eye(len(products))
    factor = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    codes = torch.zeros_like(rows)
    for place in range(rows.shape[1]):
        step = torch.where(steps[:, place] > 0, steps[:, place], 1)
        level = (rows[:, place] / step).floor().add(0.5).clamp(-outermost, outermost)
        codes[:, place] = level + outermost
        error = (rows[:, place] - level * steps[:, place]) / factor[place, place]
        rows[:, place:] -= error[:, None] * factor[place, place:]
    return Quantized(pack(codes.to(torch.uint8), bits), nearest.steps, bits, group, weight.numel())


def _group(tensor: Tensor) -> int:
    channel = max(1, tensor.numel() // max(1, len(tensor)))
    return max(size for size in range(1, min(GROUP, channel) + 1) if channel % size == 0)
