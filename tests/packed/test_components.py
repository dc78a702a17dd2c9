from dataclasses import replace

import pytest
import torch

from pfge import Ensemble
from pfge.packed import PackedMembers, PackedTensor, PackSettings, pack_members
from pfge.packed.codes import quantize
from pfge.packed.encode import TensorForm, find_components, keep_spread, mix_size
from pfge.packed.packed_members import numbers_of
from pfge.weights import Weights
from tests.packed.close_members import close_members
from tests.toys import assert_same_weights, make_batch, make_mlp

X = make_batch(7, size=20)[0]


def path_of_members(count: int = 8) -> list[Weights]:
    """Members along a random walk, as those of one run."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(32, 64, generator=generator)
    steps = 0.02 * torch.randn(count, 32, 64, generator=generator)
    return [{"weight": base + walked} for walked in steps.cumsum(dim=0)]


def test_all_components_give_the_members_and_are_orthogonal() -> None:
    deltas = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    mix, components = find_components(deltas, 5)
    torch.testing.assert_close(mix.float() @ components, deltas, rtol=0, atol=0.01)  # a mix of float16
    products = components @ components.T
    torch.testing.assert_close(products, products.diag().diag(), rtol=0, atol=1e-4)
    assert products.diag().tolist() == sorted(products.diag().tolist(), reverse=True)


def test_fewer_components_leave_what_singular_values_say() -> None:
    deltas = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)).double()
    mix, components = find_components(deltas, 3)
    left = (mix.double() @ components.double() - deltas).square().sum()
    expected = torch.linalg.svdvals(deltas)[3:].square().sum()
    torch.testing.assert_close(left, expected, rtol=1e-3, atol=0)


def test_the_sign_of_a_component_is_fixed() -> None:
    deltas = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))
    mix, _ = find_components(deltas, 4)
    assert (mix.gather(0, mix.abs().argmax(dim=0, keepdim=True)) > 0).all()


def test_components_of_a_path_take_fewer_bytes_for_the_same_error() -> None:
    members = path_of_members()

    def lost(packed: PackedMembers) -> float:
        pairs = zip(packed, members, strict=True)
        return sum(float((one["weight"] - two["weight"]).square().sum()) for one, two in pairs)

    deltas = pack_members(members, 2, PackSettings(group=None))
    form = TensorForm((4, 3, 2, 2, 1, 1), PackSettings(group=None))  # 13 bits instead of 16
    components = pack_members(members, {"weight": form}, PackSettings())
    assert components.nbytes == form.size(members[0]["weight"], 8)
    assert components.nbytes < 0.9 * deltas.nbytes
    assert lost(components) < lost(deltas)


def mixed(count: int = 4) -> PackedMembers:
    forms = {
        "0.weight": TensorForm((6, 3), PackSettings(6, None)),
        "4.weight": TensorForm((8, 4, 2), PackSettings(8, 5)),
    }
    return pack_members(close_members(count), forms, PackSettings(small_bits=8))


def test_a_member_is_the_base_plus_its_mix_of_components() -> None:
    tensor = mixed().tensors["0.weight"]
    assert tensor.mix is not None
    assert tensor.base is not None
    assert not isinstance(tensor.base, torch.Tensor)
    components = torch.stack([part.numbers() for part in tensor.each])  # type: ignore[union-attr]
    expected = tensor.base.numbers() + tensor.mix[2].float() @ components
    torch.testing.assert_close(tensor.member(2), expected.view(8, 4))
    assert mix_size(4, 2) == tensor.mix.nbytes


def test_components_of_any_width_are_mixed() -> None:
    rows = torch.randn(
        4, 203, generator=torch.Generator().manual_seed(0)
    )  # neither groups nor bytes are full
    parts = (
        *(quantize(row, bits, 32) for row, bits in zip(rows[:3], (8, 3, 1), strict=True)),
        rows[3].half(),
    )
    mix = torch.linspace(-1, 1, 8).view(2, 4).half()
    tensor = PackedTensor((29, 7), torch.float32, None, parts, mix)
    expected = sum(
        factor * numbers_of(part).double() for factor, part in zip(mix[1].tolist(), parts, strict=True)
    )
    torch.testing.assert_close(tensor.member(1).view(-1).double(), expected, rtol=0, atol=1e-6)


def test_a_part_of_the_members_is_the_same_ones() -> None:
    packed = mixed()
    for found, expected in zip(packed[1:3], list(packed)[1:3], strict=True):
        assert_same_weights(found, expected)


def test_a_module_mixes_components_as_members_do() -> None:
    ensemble = Ensemble(mixed(), make_mlp)
    module = ensemble.as_module(form="packed")
    torch.testing.assert_close(module(X), ensemble.predict(X), rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [0, 5])
def test_there_are_at_most_as_many_components_as_members(count: int) -> None:
    with pytest.raises(ValueError, match=f"count must be from 1 to 4, .*, got {count}"):
        find_components(torch.ones(4, 10), count)


def test_members_differ_from_each_other_as_much_as_before() -> None:
    members = path_of_members()
    form = TensorForm((1, 1), PackSettings(group=None))
    packed = pack_members(members, {"weight": form}, PackSettings())
    before, after = (
        (stacked - stacked.mean(dim=0)).norm()
        for stacked in (torch.stack([member["weight"] for member in kind]) for kind in (members, packed))
    )
    torch.testing.assert_close(after, before, rtol=2e-3, atol=0)


def test_what_members_add_alike_is_not_enlarged() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(40, 64, generator=generator)
    members = [{"weight": base + 0.01 * torch.randn(40, 64, generator=generator)} for _ in range(3)]
    # Of a base of 4 bits, the error is larger than the members' differences, and the one component has it.
    form = TensorForm((1,), PackSettings(4, None))
    packed = pack_members(members, {"weight": form}, PackSettings())
    of_base = PackedMembers(3, {"weight": replace(packed.tensors["weight"], each=(), mix=None)})
    for one, alone, expected in zip(packed, of_base, members, strict=True):
        errors = [(found["weight"] - expected["weight"]).norm() for found in (one, alone)]
        assert errors[0] < errors[1]


def test_components_that_are_zero_keep_their_mix() -> None:
    mix = torch.ones(2, 1, dtype=torch.float16)
    assert torch.equal(keep_spread(mix, torch.zeros(1, 3), torch.ones(2, 3)), mix)
