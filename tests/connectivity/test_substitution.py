"""A model used with other weights computes with them, and has its own afterwards."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pfge.connectivity.curves import require_values, use_with_weights
from pfge.weights import copy_weights, view_weights
from tests.toys import make_batch, make_mlp

INPUTS = make_batch(1)[0]


def output(model: nn.Module) -> Tensor:
    return model(INPUTS)


def test_the_output_is_that_of_a_model_with_those_weights() -> None:
    model, other = make_mlp(0).eval(), make_mlp(1).eval()
    found = use_with_weights(model, copy_weights(view_weights(other)), output)
    assert torch.equal(found, other(INPUTS))
    assert not torch.equal(found, model(INPUTS))


def test_what_is_written_goes_into_the_weights_and_not_into_the_model() -> None:
    model, weights = make_mlp(0), copy_weights(view_weights(make_mlp(1)))
    use_with_weights(model, weights, output)
    assert weights["1.num_batches_tracked"].item() == 1
    assert model[1].num_batches_tracked.item() == 0
    assert torch.equal(model[1].running_mean, torch.zeros(8))


def test_gradients_reach_the_weights_and_not_the_model() -> None:
    model, weights = nn.Linear(4, 1), {"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}
    weights["weight"].requires_grad_()
    use_with_weights(model, weights, output).sum().backward()
    torch.testing.assert_close(weights["weight"].grad, INPUTS.sum(dim=0, keepdim=True))
    assert model.weight.grad is None


def test_weights_in_another_memory_order_are_put_into_the_models() -> None:
    model = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    weights = copy_weights(view_weights(model))
    assert weights["weight"].is_contiguous()
    weights["weight"].requires_grad_()
    strides = use_with_weights(model, weights, lambda model: model.weight.stride())
    assert strides == model.weight.stride() != weights["weight"].stride()
    use_with_weights(model, weights, lambda model: model.weight.sum()).backward()
    assert torch.equal(weights["weight"].grad, torch.ones_like(model.weight))


def test_buffers_that_are_not_saved_are_the_models_and_are_not_written() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 1)
            self.register_buffer("calls", torch.tensor(5), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    model = Counting()
    seen = use_with_weights(
        model, view_weights(Counting()), lambda model: (model(INPUTS), model.calls.item())[1]
    )
    assert (seen, model.calls.item()) == (6, 5)


def test_the_model_comes_back_after_an_error() -> None:
    model = make_mlp(0)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())

    def fail(_: nn.Module) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        use_with_weights(model, view_weights(make_mlp(1)), fail)
    for name, tensor in (dict(model.named_parameters()) | dict(model.named_buffers())).items():
        assert tensor is tensors[name]


def compile_all(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def compile_a_part(model: nn.Module) -> nn.Module:
    model[0] = torch.compile(model[0], backend="eager")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [compile_all, compile_a_part])
def test_compiled_models_are_looked_through(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, other = wrap(make_mlp(0).eval()), make_mlp(1).eval()
    assert torch.equal(use_with_weights(model, view_weights(other), output), other(INPUTS))


def test_a_parameter_that_has_changed_is_named() -> None:
    model = make_mlp(0)
    expected = copy_weights(view_weights(model))
    require_values(model, expected)
    with torch.no_grad():
        model[4].bias[1] += 1
    with pytest.raises(
        ValueError, match=r"must leave the model's parameters as they are, but it changed 4\.bias"
    ):
        require_values(model, expected)
