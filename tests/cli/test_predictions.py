import torch

from pfge.cli.deploy import describe, explain
from pfge.tasks import Raw


def test_raw_outputs_are_printed_as_they_are() -> None:
    described = describe(Raw(), torch.tensor([[1.5, 2.0], [0.0, -1.0]]), names=(), top=None)
    assert described == {"outputs": [[1.5, 2.0], [0.0, -1.0]]}
    assert explain(described) == "[[1.5, 2.0], [0.0, -1.0]]"
