import torch

from pfge.lab.models import build_model
from pfge.lab.models.networks import has_dropout


def test_maps_rows_to_as_many_outputs_as_asked() -> None:
    model = build_model("mlp", classes=2, channels=10, width=8)
    assert model(torch.zeros(5, 10)).shape == (5, 2)
    # Two hidden layers of 8 and a head of 2.
    assert sum(parameter.numel() for parameter in model.parameters()) == 88 + 72 + 18


def test_has_dropout_where_it_is_asked_for() -> None:
    assert not has_dropout(build_model("mlp", classes=2, channels=10))
    assert has_dropout(build_model("mlp", classes=2, channels=10, dropout=0.1))
