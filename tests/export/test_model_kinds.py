"""Models that are not a plain stack of layers."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pfge import Ensemble
from pfge.export import ExportError, export_onnx, export_torch
from pfge.weights import copy_weights, view_weights
from tests.toys import make_batch

X = make_batch(1, size=3)[0]


class Unusual(nn.Module):
    """Tied weights, attention, a buffer of indices, and one that is in no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]))
        self.register_buffer("places", torch.arange(4.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        features = self.second(self.first(x + self.places).relu())[:, self.order]
        logits: Tensor = self.head(self.attention(torch.stack([features, x], dim=1)).mean(dim=1))
        return logits


class Narrow(nn.Module):
    """In bfloat16, which ONNX Runtime does not multiply on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.bfloat16())
        return logits


class WithConstant(nn.Module):
    """With a tensor that torch does not know of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.scale = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x * self.scale)
        return logits


def untrained(build: Callable[[], nn.Module]) -> Ensemble:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Ensemble([copy_weights(view_weights(build())) for _ in range(2)], build)


@pytest.mark.slow
def test_tied_weights_attention_and_temporary_buffers_are_exported(tmp_path: Path) -> None:
    # Checked by the export itself, against the ensemble.
    fast = torch.backends.mha.get_fastpath_enabled()
    assert export_onnx(untrained(Unusual), tmp_path / "e.onnx", X).largest_difference < 1e-6
    assert torch.backends.mha.get_fastpath_enabled() == fast


@pytest.mark.slow
def test_what_onnx_runtime_does_not_compute_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"ONNX Runtime can read: .*Could not find an implementation for Gemm"
    ):
        export_onnx(untrained(Narrow), tmp_path / "e.onnx", X)
    assert not list(tmp_path.iterdir())


def test_a_constant_that_is_no_buffer_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match="neither a parameter nor a buffer; register it with register_buffer"
    ):
        export_torch(untrained(WithConstant), tmp_path / "e.pt2", X)


def test_exporting_draws_no_random_numbers(tmp_path: Path) -> None:
    ensemble = untrained(Narrow)
    before = torch.get_rng_state()
    export_torch(ensemble, tmp_path / "e.pt2", X)
    assert torch.equal(torch.get_rng_state(), before)
