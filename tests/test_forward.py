import itertools
from collections import UserDict

import pytest
import torch
from torch import Tensor, nn

from pfge.forward import call_model, keep_modes, repeat_batches
from tests.toys import make_mlp


def test_every_module_is_in_its_old_mode_again_even_after_an_error() -> None:
    model = make_mlp()
    model[1].eval()
    before = [module.training for module in model.modules()]

    def change_and_fail() -> None:
        with keep_modes(model):
            model[1].train()
            model[3].eval()
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        change_and_fail()
    assert [module.training for module in model.modules()] == before


def test_batches_are_read_again_and_again() -> None:
    assert list(itertools.islice(repeat_batches([1, 2, 3]), 7)) == [1, 2, 3, 1, 2, 3, 1]


def test_batches_that_end_for_good_are_refused() -> None:
    endless = repeat_batches(iter([1]))
    assert next(endless) == 1
    with pytest.raises(ValueError, match="batches ended before the last iteration"):
        next(endless)


class Named(nn.Module):
    """Takes and returns values by name, as the models of transformers do."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": x.sum(), "logits": 2 * x}


def test_of_outputs_by_name_the_logits_are_taken() -> None:
    x = torch.ones(2, 3)
    for batch in (x, {"x": x}, UserDict(x=x), (x, torch.zeros(2))):
        assert torch.equal(call_model(Named(), batch), 2 * x)


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + 10 * y


def test_several_inputs_are_the_arguments_of_the_model() -> None:
    x, y = torch.ones(2, 3), torch.full((2, 3), 2.0)
    for inputs in ((x, y), [x, y]):
        assert torch.equal(call_model(Sum(), (inputs, torch.zeros(2))), torch.full((2, 3), 21.0))
