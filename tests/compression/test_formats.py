"""Forms take the bytes that compress() really makes, and hold the same members."""

import pytest
import torch

from pfge import Ensemble, Weights
from pfge.calibration import Temperatures
from pfge.compression import Bits, PackSettings, compress
from pfge.compression.compress import FORMATS, FORMATS_OF_ONE, StorageFormat
from pfge.lab.models import build_model
from pfge.lab.planner import describe_layout
from pfge.weights import copy_weights, count_bytes, view_weights
from tests.packed.close_members import close_members
from tests.toys import make_mlp

LAYOUT = view_weights(make_mlp())


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("stored_as", FORMATS[1:], ids=lambda stored_as: stored_as.name)
def test_bytes_are_those_of_a_compressed_ensemble(stored_as: StorageFormat, members: int) -> None:
    assert stored_as.settings is not None
    made = compress(
        Ensemble(close_members(members, spread=0.001), make_mlp),
        Bits(stored_as.bits),
        settings=stored_as.settings,
    )
    assert stored_as.size(LAYOUT, members) == made.nbytes


def test_bytes_of_a_real_network_are_those_of_a_compressed_ensemble() -> None:
    base = copy_weights(view_weights(build_model("small_conv", classes=10, channels=1)))
    generator = torch.Generator().manual_seed(0)
    members: list[Weights] = [
        {
            name: tensor + 0.001 * torch.randn(tensor.shape, generator=generator)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in base.items()
        }
        for _ in range(3)
    ]
    layout = describe_layout("small_conv", classes=10, channels=1)
    expected = compress(Ensemble(members, make_mlp), settings=PackSettings(small_bits=16)).nbytes
    assert FORMATS[2].size(layout, 3) == expected
    assert FORMATS[0].size(layout, 3) == 3 * count_bytes(base)


@pytest.mark.parametrize(
    ("stored_as", "target", "settings"),
    [
        (FORMATS[1], Bits(8), PackSettings(base_bits=None, group=None, small_bits=16)),
        (FORMATS[2], Bits(3), PackSettings(small_bits=16)),
        (FORMATS[3], Bits(1), PackSettings(small_bits=16)),
    ],
    ids=lambda value: value.name if isinstance(value, StorageFormat) else "",
)
def test_a_stored_ensemble_is_what_compress_makes(
    stored_as: StorageFormat, target: Bits, settings: PackSettings
) -> None:
    ensemble = Ensemble(close_members(3, spread=0.001), make_mlp, temperatures=Temperatures(2.0))
    stored, made = stored_as.store(ensemble), compress(ensemble, target, settings=settings)
    assert stored.nbytes == made.nbytes
    assert stored.temperatures == ensemble.temperatures
    for ours, theirs in zip(stored.members, made.members, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_one_member_is_stored_as_its_base() -> None:
    ensemble = Ensemble(close_members(1, spread=0.001), make_mlp)
    made = compress(ensemble, settings=PackSettings(small_bits=16))
    assert FORMATS_OF_ONE[1].store(ensemble).nbytes == FORMATS_OF_ONE[1].size(LAYOUT, 1) == made.nbytes


def test_members_as_they_are_are_left_alone() -> None:
    ensemble = Ensemble(close_members(2, spread=0.001), make_mlp)
    assert FORMATS[0].store(ensemble) is ensemble
