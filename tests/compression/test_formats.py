"""Forms take the bytes that compress() really makes, and hold the same members."""

import pytest
import torch

from pfge import Ensemble, Weights, copy_weights, view_weights
from pfge.calibration import Temperatures
from pfge.compression import compress
from pfge.compression.formats import FORMS, FORMS_OF_ONE, Form
from pfge.lab.models import build_model
from pfge.lab.planner import describe_layout
from pfge.weights import count_bytes
from tests.packed.test_packed_members import close_members
from tests.toys import make_mlp

LAYOUT = view_weights(make_mlp())


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("form", FORMS[1:], ids=lambda form: form.name)
def test_bytes_are_those_of_a_compressed_ensemble(form: Form, members: int) -> None:
    assert form.settings is not None
    made = compress(
        Ensemble(close_members(members, spread=0.001), make_mlp),
        base_bits=form.settings.base_bits,
        delta_bits=form.bits,
        group=form.settings.group,
        small_bits=form.settings.small_bits,
    )
    assert form.size(LAYOUT, members) == made.nbytes


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
    expected = compress(Ensemble(members, make_mlp), small_bits=16).nbytes
    assert FORMS[2].size(layout, 3) == expected
    assert FORMS[0].size(layout, 3) == 3 * count_bytes(base)


@pytest.mark.parametrize(
    ("form", "options"),
    [
        (FORMS[1], {"base_bits": None, "delta_bits": 8, "group": None}),
        (FORMS[2], {"delta_bits": 3}),
        (FORMS[3], {"delta_bits": 1}),
    ],
    ids=lambda value: value.name if isinstance(value, Form) else "",
)
def test_a_stored_ensemble_is_what_compress_makes(form: Form, options: dict[str, int | None]) -> None:
    ensemble = Ensemble(close_members(3, spread=0.001), make_mlp, temperatures=Temperatures(2.0))
    stored, made = form.store(ensemble), compress(ensemble, small_bits=16, **options)  # type: ignore[arg-type]
    assert stored.nbytes == made.nbytes
    assert stored.temperatures == ensemble.temperatures
    for ours, theirs in zip(stored.members, made.members, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_one_member_is_stored_as_its_base() -> None:
    ensemble = Ensemble(close_members(1, spread=0.001), make_mlp)
    made = compress(ensemble, small_bits=16)
    assert FORMS_OF_ONE[1].store(ensemble).nbytes == FORMS_OF_ONE[1].size(LAYOUT, 1) == made.nbytes


def test_members_as_they_are_are_left_alone() -> None:
    ensemble = Ensemble(close_members(2, spread=0.001), make_mlp)
    assert FORMS[0].store(ensemble) is ensemble
