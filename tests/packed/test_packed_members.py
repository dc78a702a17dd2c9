import pytest
import torch
from torch import Tensor, nn

from pfge import Ensemble, Weights
from pfge.packed import PackedMembers, PackedTensor, PackSettings, pack_members
from pfge.packed.codes import Quantized, quantize
from pfge.packed.encode import TensorForm, find_common
from pfge.packed.packed_members import fits_float16, pack_as_is
from pfge.weights import copy_weights, view_weights
from tests.packed.close_members import X, close_members
from tests.toys import assert_same_weights, make_mlp


def relative_error(packed: PackedMembers, members: list[Weights], name: str) -> float:
    lost = [
        (one[name] - two[name]).norm() / two[name].norm() for one, two in zip(packed, members, strict=True)
    ]
    return max(lost).item()


def test_a_member_is_the_base_plus_its_delta() -> None:
    base, deltas = (
        torch.tensor([[1.0, 2], [3, 4]]),
        (torch.tensor([0.5, 0, 0, 0]), torch.tensor([0, 0, 0, 0.25])),
    )
    tensor = PackedTensor((2, 2), torch.float32, base, deltas)
    assert tensor.member(0).tolist() == [[1.5, 2], [3, 4]]
    assert tensor.member(1).tolist() == [[1, 2], [3, 4.25]]


@pytest.mark.parametrize("base_bits", [8, 16, 32])
@pytest.mark.parametrize("bits", [1, 3, 8])
def test_deltas_make_good_the_error_of_the_base(base_bits: int, bits: int) -> None:
    members = close_members()
    packed = pack_members(members, bits, PackSettings(base_bits))
    mean = torch.stack([member["0.weight"] for member in members]).mean(0)
    base = {8: quantize(mean, 8, 4).numbers().view(8, 4), 16: mean.half().float(), 32: mean}[base_bits]
    for member, found in zip(members, packed, strict=True):
        expected = base + quantize(member["0.weight"] - base, bits, 64).numbers().view(8, 4)
        torch.testing.assert_close(found["0.weight"], expected, rtol=0, atol=1e-6)


def test_more_bits_are_nearer_to_the_members() -> None:
    members = close_members()
    lost = [
        relative_error(pack_members(members, b, PackSettings()), members, "0.weight") for b in range(1, 9)
    ]
    assert lost == sorted(lost, reverse=True)
    assert lost[7] < lost[0] / 50


def test_what_is_no_matrix_is_exact_at_32_bits() -> None:
    members = close_members()
    for found, member in zip(pack_members(members, 1, PackSettings()), members, strict=True):
        kept = [name for name in member if name not in ("0.weight", "4.weight")]
        assert_same_weights({name: found[name] for name in kept}, {name: member[name] for name in kept})


def test_what_is_no_matrix_is_float16_at_16_bits() -> None:
    members = close_members()
    packed = pack_members(members, 1, PackSettings(small_bits=16))
    for found, member in zip(packed, members, strict=True):
        assert torch.equal(found["1.running_var"], member["1.running_var"].half().float())
        assert torch.equal(found["1.num_batches_tracked"], member["1.num_batches_tracked"])


def test_what_is_the_same_in_all_members_is_stored_once() -> None:
    members = [
        {"a": torch.arange(4.0).view(2, 2), "b": torch.ones(3), "n": torch.tensor(7)} for _ in range(5)
    ]
    assert pack_members(members, 3, PackSettings(base_bits=32)).nbytes == 16 + 12 + 8
    # Two rows of two 8-bit numbers, padded to 8 bytes, and a step for each.
    assert pack_members(members, 3, PackSettings(base_bits=8)).nbytes == 8 + 2 * 2 + 12 + 8


def test_bytes_are_counted_by_hand() -> None:
    packed = pack_members(close_members(4), 3, PackSettings(small_bits=16))
    # Base: 8 rows of 4 and 3 rows of 8 bytes, a 2-byte step a row. Deltas: 3 bits, one group each.
    base = (32 + 2 * 8) + (24 + 2 * 3)
    delta = (3 * 4 + 2) + (3 * 3 + 2)
    # Biases 8 and 3, BatchNorm 4 * 8, in 2 bytes; one counter of 8 bytes.
    assert packed.nbytes == base + 4 * delta + 4 * 2 * (8 + 3 + 32) + 8


def test_without_a_base_each_member_is_packed_by_itself() -> None:
    members = close_members()
    eight = pack_members(members, 8, PackSettings(base_bits=None, group=None))
    for found, member in zip(eight, members, strict=True):
        assert torch.equal(found["0.weight"], quantize(member["0.weight"], 8, 4).numbers().view(8, 4))
    half = pack_members(members, 16, PackSettings(base_bits=None))
    for found, member in zip(half, members, strict=True):
        assert torch.equal(found["0.weight"], member["0.weight"].half().float())


def test_one_member_without_a_base_has_the_width_that_is_asked_for() -> None:
    members = close_members(1)
    eight = pack_members(members, 8, PackSettings(base_bits=None, group=None))
    assert torch.equal(eight[0]["0.weight"], quantize(members[0]["0.weight"], 8, 4).numbers().view(8, 4))
    # Rows of 4 and of 8 bytes, a 2-byte step a row, 43 floats and the counter.
    assert eight.nbytes == (32 + 2 * 8) + (24 + 2 * 3) + 4 * 43 + 8


def test_members_keep_the_models_own_types() -> None:
    members = [copy_weights(view_weights(make_mlp(seed).bfloat16())) for seed in range(2)]
    for found, member in zip(pack_members(members, 3, PackSettings()), members, strict=True):
        assert {n: t.dtype for n, t in found.items()} == {n: t.dtype for n, t in member.items()}


def test_members_are_taken_by_index_and_by_slice() -> None:
    packed = pack_members(close_members(), 3, PackSettings())
    assert_same_weights(packed[-1], packed[3])
    assert len(packed[1:3]) == 2
    assert_same_weights(packed[1:3][1], packed[2])
    with pytest.raises(IndexError):
        packed[4]
    with pytest.raises(IndexError):
        packed[1:3][2]


def test_a_slice_counts_only_its_own_deltas() -> None:
    packed = pack_members(close_members(), 3, PackSettings(small_bits=16))
    each = (3 * 4 + 2) + (3 * 3 + 2) + 2 * (8 + 3 + 32)
    assert packed.nbytes - packed[-1:].nbytes == 3 * each


def test_unpacking_into_a_model_is_the_member() -> None:
    packed = pack_members(close_members(), 3, PackSettings())
    model = make_mlp(9)
    packed.load_into(model, 2)
    assert_same_weights(view_weights(model), packed[2])


def test_unpacking_refuses_another_model_and_leaves_it_alone() -> None:
    model = make_mlp(classes=5)
    before = copy_weights(view_weights(model))
    with pytest.raises(ValueError, match=r"4.bias is \[5\] in the model and \[3\] in the weights"):
        pack_members(close_members(), 3, PackSettings()).load_into(model, 0)
    assert_same_weights(view_weights(model), before)


def test_predicting_has_one_model_in_memory_and_never_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count tensors that are alive while members are unpacked, by a weak reference to each."""
    import weakref

    unpack, alive, most = PackedTensor.member, weakref.WeakSet[Tensor](), [0]

    def counted(self: PackedTensor, index: int) -> Tensor:
        tensor = unpack(self, index)
        alive.add(tensor)
        most[0] = max(most[0], len(alive))
        return tensor

    monkeypatch.setattr(PackedTensor, "member", counted)
    models = weakref.WeakSet[nn.Module]()

    def build() -> nn.Module:
        assert not models, "a model is built while another one is in memory"
        models.add(model := make_mlp())
        return model

    ensemble = Ensemble(pack_members(close_members(), 3, PackSettings()), build)
    ensemble.predict_batches([X, X])
    assert len(models) == 1
    assert most[0] <= 2  # the tensor being copied, and the one that the loop is about to let go


def test_tensors_can_be_replaced_but_not_those_that_are_quantized() -> None:
    packed = pack_members(close_members(), 3, PackSettings(small_bits=16))
    fresh = [{"1.running_mean": torch.full((8,), 0.1 + n), "0.weight": torch.zeros(8, 4)} for n in range(4)]
    changed = packed.with_tensors(fresh)
    assert torch.equal(changed[2]["1.running_mean"], torch.full((8,), 2.1).half().float())
    assert torch.equal(changed[2]["0.weight"], packed[2]["0.weight"])
    assert changed.nbytes == packed.nbytes


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ([1.0, 0.1], True),
        ([1e5, 1.0], False),
        ([1e-9, 2e-9], False),
        ([1.0, 1e-9], True),
        ([0.0], True),
        ([], True),
    ],
)
def test_float16_holds_what_is_in_its_range(values: list[float], fits: bool) -> None:
    assert fits_float16(torch.tensor(values)) is fits


def test_what_float16_cannot_hold_keeps_its_own_type() -> None:
    tensors = [torch.tensor([1e6, 1.0]), torch.tensor([1.0, 1.0])]
    assert torch.equal(pack_as_is(tensors, 16).member(0), tensors[0])


def test_members_that_cannot_be_packed_are_refused() -> None:
    members = close_members()
    with pytest.raises(ValueError, match="compressing needs at least one member"):
        find_common([], PackSettings())
    with pytest.raises(ValueError, match=r"4.bias is \[3\] in member 1 and \[5\] in member 2"):
        find_common([members[0], copy_weights(view_weights(make_mlp(classes=5)))], PackSettings())
    members[1]["4.weight"][0, 0] = torch.nan
    with pytest.raises(
        ValueError, match=r"must be finite to be compressed, but 4.weight of member 2 has NaN"
    ):
        find_common(members, PackSettings())


@pytest.mark.parametrize(
    ("settings", "bits", "message"),
    [
        ({"base_bits": 1}, 3, "base_bits must be 2 to 8, 16, 32 or None, got 1"),
        ({"small_bits": 12}, 3, "small_bits must be 2 to 8, 16 or 32, got 12"),
        ({"group": 0}, 3, "group must be at least 1 number or None, got 0"),
        ({}, 0, "delta_bits must be 1 to 8, got 0"),
        ({}, 9, "delta_bits must be 1 to 8, got 9"),
        ({}, 16, "delta_bits must be 1 to 8, got 16"),
        ({"base_bits": None}, 12, "delta_bits must be 1 to 8, or 16 without a base, got 12"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int | None], bits: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_members(close_members(), bits, PackSettings(**settings))  # type: ignore[arg-type]


def test_the_original_is_left_alone() -> None:
    members, before = close_members(), close_members()
    packed = pack_members(members, 3, PackSettings())
    for one, two in zip(members, before, strict=True):
        assert_same_weights(one, two)
    members[0]["1.weight"].zero_()
    assert torch.equal(packed[0]["1.weight"], before[0]["1.weight"])


def test_each_tensor_may_have_its_own_width() -> None:
    packed = pack_members(close_members(), {"0.weight": 2, "4.weight": 5}, PackSettings())
    found = [packed.tensors[name].each[0] for name in ("0.weight", "4.weight")]
    assert [part.bits for part in found if isinstance(part, Quantized)] == [2, 5]


@pytest.mark.parametrize("names", [["0.weight"], ["0.weight", "4.weight", "4.bias"]])
def test_widths_for_other_tensors_are_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"add or remove \['4\."):
        pack_members(close_members(), dict.fromkeys(names, 3), PackSettings())


def test_each_tensor_may_have_a_form_of_its_own() -> None:
    members = close_members()
    forms = {
        "0.weight": TensorForm(2, PackSettings(5, 16)),
        "4.weight": TensorForm(4, PackSettings(8, None)),
    }
    packed = pack_members(members, forms, PackSettings(small_bits=16))
    for name, form in forms.items():
        tensor = packed.tensors[name]
        assert isinstance(tensor.base, Quantized)
        assert isinstance(tensor.each[0], Quantized)
        assert (tensor.base.bits, tensor.each[0].bits) == (form.settings.base_bits, form.bits)
        assert tensor.each[0].group == {"0.weight": 16, "4.weight": 8}[name]
        assert tensor.nbytes == form.size(members[0][name], len(members))


@pytest.mark.parametrize("bits", [4, 8])
def test_small_tensors_are_a_mean_and_what_each_member_adds(bits: int) -> None:
    members = close_members()
    packed = pack_members(members, 3, PackSettings(small_bits=bits))
    name = "0.bias"
    tensor = packed.tensors[name]
    # A base of float16; a member has 8 numbers and one step.
    assert tensor.nbytes == 8 * 2 + 4 * (bits + 2)
    stacked = torch.stack([member[name] for member in members])
    largest = (stacked - stacked.mean(0)).abs().amax(dim=1)
    for number, member in enumerate(packed):
        # Half of a step, of which 2**bits - 1 lie within twice the largest number; steps have 8 bits, and the
        # steps of least squared error may be some percent larger.
        allowed = 1.5 * largest[number] / (2**bits - 1)
        assert (member[name] - members[number][name]).abs().max() <= allowed


def test_a_counter_that_differs_is_kept_whatever_the_bits() -> None:
    members = close_members(2)
    members[1]["1.num_batches_tracked"] += 7
    packed = pack_members(members, 3, PackSettings(small_bits=4))
    assert [int(member["1.num_batches_tracked"]) for member in packed] == [0, 7]


def test_replaced_tensors_keep_their_few_bits() -> None:
    packed = pack_members(close_members(), 3, PackSettings(small_bits=6))
    fresh = [{"1.running_mean": torch.arange(8.0) + number} for number in range(4)]
    changed = packed.with_tensors(fresh)
    assert changed.nbytes == packed.nbytes
    for number, member in enumerate(changed):
        torch.testing.assert_close(
            member["1.running_mean"], fresh[number]["1.running_mean"], rtol=0, atol=0.05
        )


def test_positive_numbers_of_very_different_sizes_are_kept_in_float16() -> None:
    # As variances of channels: in few bits beside 2.0 and 3.0, what is 0.001 would be anything up to 0.1.
    members = [{"var": torch.tensor([0.001, 2.0 + k])} for k in range(2)]
    packed = pack_members(members, 3, PackSettings(small_bits=4))
    for found, member in zip(packed, members, strict=True):
        torch.testing.assert_close(found["var"], member["var"], rtol=1e-3, atol=0)
    either = [{"bias": torch.tensor([-0.001, 2.0 + k])} for k in range(2)]
    assert pack_members(either, 3, PackSettings(small_bits=4)).tensors["bias"].base is not None


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_zero_beside_positive_numbers_lets_none_of_them_become_negative(bits: int) -> None:
    # As the variances of a dead channel, a quiet one and two others.
    members = [{"var": torch.tensor([0.0, 5e-4 * (1 + k), 2.0 - k, 1.0 + k])} for k in range(2)]
    packed = pack_members(members, 3, PackSettings(small_bits=bits))
    for found, member in zip(packed, members, strict=True):
        torch.testing.assert_close(found["var"], member["var"], rtol=1e-3, atol=0)


def test_a_zero_alone_does_not_cost_a_tensor_its_few_bits() -> None:
    members = [{"var": torch.tensor([0.0, 1.0 + 0.01 * k, 2.0 - 0.01 * k])} for k in range(2)]
    packed = pack_members(members, 3, PackSettings(small_bits=4))
    # A base of float16; a member has 8 codes and one step.
    assert packed.nbytes == 3 * 2 + 2 * (4 + 2)
    for found, member in zip(packed, members, strict=True):
        assert bool((found["var"] >= 0).all())
        # The mean in float16 is off by at most 2**-11 of 2, and a difference of 0.005 by half a step of it.
        torch.testing.assert_close(found["var"], member["var"], rtol=0, atol=2**-10 + 0.001)


@pytest.mark.parametrize("small_bits", [4, 16, 32])
@pytest.mark.parametrize("types", [(torch.float32, torch.float16), (torch.float16, torch.float32)])
def test_members_of_different_types_have_that_of_the_first(
    types: tuple[torch.dtype, torch.dtype], small_bits: int
) -> None:
    members = [
        {
            name: tensor.to(dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in one.items()
        }
        for one, dtype in zip(close_members(2), types, strict=True)
    ]
    packed = pack_members(members, 8, PackSettings(small_bits=small_bits))
    for found, member in zip(packed, members, strict=True):
        assert {n: t.dtype for n, t in found.items()} == {n: t.dtype for n, t in members[0].items()}
        for name, tensor in member.items():
            torch.testing.assert_close(found[name].double(), tensor.double(), rtol=0.01, atol=0.01)
    # As many bytes as members of the first type take.
    alike = [{name: tensor.to(members[0][name].dtype) for name, tensor in one.items()} for one in members]
    assert packed.nbytes == pack_members(alike, 8, PackSettings(small_bits=small_bits)).nbytes


def test_a_member_that_the_type_of_the_first_cannot_hold_is_refused() -> None:
    members = [{"bias": torch.ones(2).half()}, {"bias": torch.tensor([1.0, 1e6])}]
    message = (
        r"members are compressed in the types of member 1, but bias of member 2 is not finite in "
        r"torch.float16; put a member of a wider type first"
    )
    with pytest.raises(ValueError, match=message):
        find_common(members, PackSettings())
    assert pack_members(members[::-1], 3, PackSettings())[0]["bias"].tolist() == [1.0, 1e6]
