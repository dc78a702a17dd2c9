from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pfge import Ensemble
from pfge.compression import Bits, Distillation, PackSettings, compress, distil
from pfge.compression.distillation import DistillationError
from pfge.packed import PackedMembers, pack_members
from pfge.packed.codes import Quantized
from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.storage.files import StorageError
from pfge.weights import copy_weights, view_weights
from tests.packed.close_members import close_members
from tests.tasks.cases import CASES
from tests.toys import assert_same_weights, make_batch, make_mlp

TRAINING = [make_batch(i, size=64) for i in range(4)]
FEW = Distillation(iterations=8)


@pytest.fixture
def ensemble() -> Ensemble:
    return Ensemble(close_members(3), make_mlp)


@pytest.fixture
def packed(ensemble: Ensemble) -> Ensemble:
    return compress(ensemble, Bits(1), settings=PackSettings(6, 16, 16))


def members_of(ensemble: Ensemble) -> PackedMembers:
    assert isinstance(ensemble.members, PackedMembers)
    return ensemble.members


def assert_same_members(first: Ensemble, second: Ensemble) -> None:
    for one, two in zip(first.members, second.members, strict=True):
        assert_same_weights(one, two)


def test_the_rate_falls_from_the_highest_to_zero_by_a_cosine() -> None:
    settings = Distillation(iterations=3, rate=0.8)
    assert [settings.rate_at(i) for i in range(4)] == pytest.approx([0.8, 0.6, 0.2, 0])


def test_codes_and_the_base_stay_and_steps_change(ensemble: Ensemble, packed: Ensemble) -> None:
    before = [dict(member) for member in packed.members]
    found = members_of(distil(ensemble, packed, TRAINING, FEW))
    for name, tensor in members_of(packed).tensors.items():
        made = found.tensors[name]
        assert made.nbytes == tensor.nbytes
        for old, new in zip(tensor.each, made.each, strict=True):
            if isinstance(old, Quantized):
                assert isinstance(new, Quantized)
                assert torch.equal(old.codes, new.codes)
                assert not torch.equal(old.steps, new.steps)
        if isinstance(tensor.base, Quantized):
            assert made.base is tensor.base
    # BatchNorm's parameters are trained, its statistics are not.
    assert not torch.equal(found[0]["1.weight"], before[0]["1.weight"])
    assert torch.equal(found[0]["1.running_mean"], before[0]["1.running_mean"])
    for member, old in zip(packed.members, before, strict=True):  # what was given is left alone
        assert_same_weights(member, old)


def test_each_member_comes_nearer_to_its_own_original(ensemble: Ensemble, packed: Ensemble) -> None:
    made = distil(ensemble, packed, TRAINING, Distillation(iterations=60))
    held_out = make_batch(99, size=256)[0]
    expected, before, after = (e.predict_members(held_out) for e in (ensemble, packed, made))
    for number in range(3):
        diverged = [ensemble.task.divergence(expected[number], p[number]) for p in (before, after)]
        assert diverged[1] < 0.7 * diverged[0]


def test_one_step_moves_against_the_gradient_by_the_rate(ensemble: Ensemble, packed: Ensemble) -> None:
    # The first step of Adam is the rate times the sign of the gradient, relative to the old step.
    made = distil(ensemble, packed, TRAINING[:1], Distillation(iterations=1, rate=0.1))
    old, new = (members_of(e).tensors["0.weight"].each[0] for e in (packed, made))
    assert isinstance(old, Quantized)
    assert isinstance(new, Quantized)
    ratios = new.steps.float() / old.steps.float()
    assert ((ratios - 1).abs() - 0.1).abs().max() < 0.01
    expected = ensemble.predict_members(TRAINING[0])[0]

    def divergence(steps: torch.Tensor) -> float:
        tensor = members_of(packed).tensors["0.weight"]
        each = (replace(old, steps=steps), *tensor.each[1:])
        tensors = members_of(packed).tensors | {"0.weight": replace(tensor, each=each)}
        predictions = packed.with_members(PackedMembers(3, tensors)).predict_members(TRAINING[0])[0]
        return ensemble.task.divergence(expected, predictions)

    for number, ratio in enumerate(ratios.tolist()):
        nudged = old.steps.float()
        nudged[number] *= 1 + 0.02 * (1 if ratio > 1 else -1)
        assert divergence(nudged) < divergence(old.steps.float())


def test_a_distillation_that_was_interrupted_ends_with_the_same_members(
    ensemble: Ensemble, packed: Ensemble, tmp_path: Path
) -> None:
    whole = distil(ensemble, packed, TRAINING, FEW)
    settings = replace(FEW, checkpoint=tmp_path / "distil.checkpoint")

    class InterruptionError(Exception):
        pass

    def interrupt(done: int, total: int, loss: float) -> None:
        assert total == 3 * 8
        assert loss >= 0
        if done == 2 * 8 + 3:
            raise InterruptionError

    with pytest.raises(InterruptionError):
        distil(ensemble, packed, TRAINING, settings, interrupt)
    told: list[int] = []
    made = distil(ensemble, packed, TRAINING, settings, lambda done, *_: told.append(done))
    assert told == list(range(2 * 8 + 1, 3 * 8 + 1))  # two members were done
    assert_same_members(made, whole)


def test_a_checkpoint_of_another_distillation_is_not_continued(
    ensemble: Ensemble, packed: Ensemble, tmp_path: Path
) -> None:
    file = tmp_path / "distil.checkpoint"
    distil(ensemble, packed, TRAINING, Distillation(iterations=2, checkpoint=file))
    told: list[int] = []
    made = distil(ensemble, packed, TRAINING, replace(FEW, checkpoint=file), lambda *a: told.append(a[0]))
    assert told[0] == 1
    assert_same_members(made, distil(ensemble, packed, TRAINING, FEW))
    assert len(load_checkpoint(file)["done"]) == 3
    save_checkpoint(file, {"iteration": 3})
    with pytest.raises(StorageError, match="must be a checkpoint of a distillation; delete it"):
        distil(ensemble, packed, TRAINING, replace(FEW, checkpoint=file))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_task_can_be_distilled(case: Any) -> None:
    ensemble = Ensemble(case.members(), case.build, task=case.task)
    packed = ensemble.with_members(pack_members(ensemble.members, 1, PackSettings(group=8)))
    made = distil(ensemble, packed, [case.inputs], Distillation(iterations=40))
    expected = ensemble.predict(case.inputs)
    before, after = (case.task.divergence(expected, e.predict(case.inputs)) for e in (packed, made))
    assert after < before


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_loss_is_the_divergence(case: Any) -> None:
    ensemble = Ensemble(case.members(2), case.build, task=case.task)
    first, second = ensemble.predict_members(case.inputs)
    assert case.task.divergence_loss(first, second).item() == case.task.divergence(first, second)


def test_bad_input_is_refused(ensemble: Ensemble, packed: Ensemble) -> None:
    with pytest.raises(ValueError, match="batches ended before the last iteration; pass a DataLoader"):
        distil(ensemble, packed, [])
    with pytest.raises(ValueError, match="got an iterator, which is read only once"):
        distil(ensemble, packed, iter(TRAINING))
    with pytest.raises(ValueError, match="distillation needs packed members; compress"):
        distil(ensemble, ensemble, TRAINING)
    with pytest.raises(DistillationError, match=r"diverged at iteration \d of member 1; lower the rate"):
        distil(ensemble, packed, TRAINING, Distillation(iterations=5, rate=1e30))
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        Distillation(iterations=0)
    with pytest.raises(ValueError, match="rate must be above 0 and finite, got nan"):
        Distillation(rate=float("nan"))


def test_an_error_of_the_data_is_raised_as_it_is(ensemble: Ensemble, packed: Ensemble) -> None:
    class Broken:
        def __iter__(self) -> Iterator[Any]:
            yield TRAINING[0]
            raise ValueError("image 7 is no picture")

    with pytest.raises(ValueError, match="image 7 is no picture"):
        distil(ensemble, packed, Broken(), FEW)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("small_bits", [8, 16, 32])
def test_distilled_tensors_keep_their_types_and_bytes(dtype: torch.dtype, small_bits: int) -> None:
    models = [make_mlp(seed).to(dtype) for seed in range(2)]
    members = [copy_weights(view_weights(model)) for model in models]
    ensemble = Ensemble(members, lambda: make_mlp().to(dtype))
    packed = ensemble.with_members(pack_members(members, 1, PackSettings(small_bits=small_bits)))
    made = distil(ensemble, packed, [TRAINING[0][0].to(dtype)], Distillation(iterations=2))
    assert not torch.equal(made.members[0]["4.bias"], packed.members[0]["4.bias"])
    for name, tensor in made.members[0].items():
        assert tensor.dtype == members[0][name].dtype
    assert made.nbytes == packed.nbytes


class Complex(torch.nn.Module):
    """A layer whose outputs are turned by complex numbers of absolute value about 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.turn = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * self.turn).real


def test_complex_numbers_stay_in_distillation() -> None:
    generator = torch.Generator().manual_seed(0)
    members = [
        {
            "layer.weight": torch.randn(3, 4, generator=generator),
            "layer.bias": torch.randn(3, generator=generator),
            "turn": torch.randn(3, dtype=torch.complex64, generator=generator),
        }
        for _ in range(2)
    ]
    ensemble = Ensemble(members, Complex)
    packed = ensemble.with_members(pack_members(members, 1, PackSettings()))
    made = distil(ensemble, packed, TRAINING, Distillation(iterations=2))
    for found, member in zip(made.members, members, strict=True):
        assert torch.equal(found["turn"], member["turn"])
        assert not torch.equal(found["layer.bias"], member["layer.bias"])
