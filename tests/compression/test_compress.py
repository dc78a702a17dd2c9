import re
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfge import PFGE, Ensemble
from pfge.calibration import Temperatures
from pfge.compression import Bits, Budget, Distillation, MaxLoss, compress, distil
from pfge.compression.compress import Quality, QualityEvaluator, measure_sensitivity
from pfge.compression.rate_distortion import Choices, Ladder
from pfge.metrics import kl_divergence, negative_log_likelihood
from pfge.packed import PackedMembers, PackSettings, pack_members
from pfge.packed.codes import Quantized
from pfge.packed.encode import find_common
from pfge.tasks import Classification, Raw
from pfge.weights import count_bytes
from tests.frozen_toys import X, advance, bytes_of_folder, classify, make_trajectory
from tests.frozen_toys import make_model as make_frozen_model
from tests.packed.close_members import close_members
from tests.tasks.cases import CASES
from tests.toys import assert_same_weights, make_batch, make_mlp

VALIDATION = [make_batch(100 + i) for i in range(4)]
TARGETS = torch.cat([targets for _, targets in VALIDATION])
TRAINING = [make_batch(i, size=64) for i in range(4)]


@pytest.fixture
def ensemble() -> Ensemble:
    members = close_members(8, spread=0.02)
    return Ensemble(members, make_mlp, method="FGE", iterations=range(8)).with_fresh_batch_norm(TRAINING)


def divergence(ensemble: Ensemble, compressed: Ensemble) -> float:
    return kl_divergence(ensemble.predict_batches(VALIDATION), compressed.predict_batches(VALIDATION))


def widths(ensemble: Ensemble) -> dict[str, int]:
    assert isinstance(ensemble.members, PackedMembers)
    parts = {name: tensor.each[0] for name, tensor in ensemble.members.tensors.items() if tensor.each}
    return {name: part.bits for name, part in parts.items() if isinstance(part, Quantized)}


def test_three_bits_and_an_eight_bit_base_are_usual(ensemble: Ensemble) -> None:
    compressed = compress(ensemble)
    expected = pack_members(ensemble.members, 3, PackSettings(8, 64, 32))
    assert isinstance(compressed.members, PackedMembers)
    for one, two in zip(compressed.members, expected, strict=True):
        assert_same_weights(one, two)
    assert (compressed.method, compressed.iterations) == ("FGE", list(range(8)))


def test_the_result_is_an_ensemble_in_fewer_bytes_with_nearly_the_same_predictions(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    compressed = compress(ensemble, Bits(3), settings=PackSettings(small_bits=16))
    assert compressed.nbytes < ensemble.nbytes / 2
    assert 0 < divergence(ensemble, compressed) < 1e-3
    compressed.last(2).save(tmp_path)
    assert torch.equal(
        Ensemble.load(tmp_path, make_mlp).predict_batches(VALIDATION),
        compressed.last(2).predict_batches(VALIDATION),
    )


def test_wider_deltas_diverge_less(ensemble: Ensemble) -> None:
    found = [divergence(ensemble, compress(ensemble, Bits(bits))) for bits in (1, 4, 8)]
    assert found[0] > 4 * found[1] > 16 * found[2]


@pytest.mark.slow
def test_the_original_is_left_alone(ensemble: Ensemble) -> None:
    before = [dict(member) for member in ensemble.members]
    state = torch.get_rng_state()
    compress(ensemble, MaxLoss(kl=1e-3), validation=VALIDATION, refresh=TRAINING)
    for one, two in zip(ensemble.members, before, strict=True):
        assert_same_weights(one, two)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_budget_is_kept(ensemble: Ensemble) -> None:
    smallest, largest = (compress(ensemble, Bits(bits)).nbytes for bits in (1, 8))
    for budget in (smallest, (smallest + largest) // 2, largest):
        found = compress(ensemble, Budget(budget), settings=PackSettings())
        # A bit for the smaller matrix costs 8 members 3 bytes each.
        assert budget - 8 * 3 < found.nbytes <= budget


def test_a_budget_of_files_is_kept_and_used(tmp_path: Path) -> None:
    noise = torch.randn(4, 40, 64, generator=torch.Generator().manual_seed(0))
    members = [{"weight": 1 + 0.05 * one} for one in noise]
    ensemble = Ensemble(members, lambda: torch.nn.Linear(64, 40, bias=False))
    found = compress(ensemble, Budget(6000, files=True))
    found.save(tmp_path)
    files = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert 6000 - 2 * 320 < files <= 6000  # another bit for a component costs 320 bytes and steps
    assert found.nbytes > files  # they are deflated
    with pytest.raises(
        ValueError, match=r"budget must be at least \d+ bytes, the size with the fewest bits of every"
    ):
        compress(ensemble, Budget(500, files=True))


def test_fewer_members_than_components_of_a_budget_are_saved_and_loaded(tmp_path: Path) -> None:
    found = compress(Ensemble(close_members(4), make_mlp), Budget(500))
    assert isinstance(found.members, PackedMembers)
    assert len(found.members.tensors["0.weight"].each) == 3
    last = found.last(2)
    last.save(tmp_path)
    loaded = Ensemble.load(tmp_path, make_mlp)
    assert torch.equal(loaded.predict_batches(VALIDATION), last.predict_batches(VALIDATION))


def test_the_least_budget_of_files_is_that_of_the_smallest_plan() -> None:
    ensemble, settings = Ensemble(close_members(), make_mlp), PackSettings()
    smallest = compress(ensemble, Bits(1), settings=settings)
    least = smallest.file_bytes()
    assert least > 1.5 * smallest.nbytes  # much of such small files is no tensors
    assert compress(ensemble, Budget(least, files=True), settings=settings).file_bytes() == least
    with pytest.raises(ValueError, match=f"budget must be at least {least} bytes"):
        compress(ensemble, Budget(least - 1, files=True), settings=settings)


def test_a_budget_without_settings_is_used_better_than_with_any(ensemble: Ensemble) -> None:
    budget = compress(ensemble, Bits(2), settings=PackSettings(small_bits=16)).nbytes
    fixed = compress(ensemble, Budget(budget), settings=PackSettings(small_bits=16), validation=VALIDATION)
    free = compress(ensemble, Budget(budget), validation=VALIDATION)
    assert max(fixed.nbytes, free.nbytes) <= budget
    assert divergence(ensemble, free) < divergence(ensemble, fixed) / 2


def test_a_budget_with_data_takes_the_better_of_equal_and_measured_weights(ensemble: Ensemble) -> None:
    budget = compress(ensemble, Bits(2)).nbytes + 8 * 3
    common, choices = find_common(ensemble.members, PackSettings()), Choices.of(PackSettings())
    ladder = Ladder(ensemble.members, common, choices)
    weighted = ladder.weighted(measure_sensitivity(ensemble, common, VALIDATION))
    plans = [ladder.within(budget), weighted.within(budget)]
    made = [
        ensemble.with_members(pack_members(ensemble.members, plan.forms, plan.settings, common))
        for plan in plans
    ]
    chosen = compress(ensemble, Budget(budget), settings=PackSettings(), validation=VALIDATION)
    assert divergence(ensemble, chosen) == min(divergence(ensemble, one) for one in made)


def test_a_budget_that_nobody_can_meet_says_the_smallest(ensemble: Ensemble) -> None:
    smallest = compress(ensemble, Bits(1), settings=PackSettings(small_bits=16)).nbytes
    message = (
        f"budget must be at least {smallest} bytes, the size with base_bits=8, delta_bits=1, group=64 and "
        "small_bits=16, got 100; raise it"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        compress(ensemble, Budget(100), settings=PackSettings(small_bits=16))


def test_a_divergence_is_kept_and_one_bit_less_would_not_keep_it(ensemble: Ensemble) -> None:
    found = compress(ensemble, MaxLoss(kl=1e-5), settings=PackSettings(), validation=VALIDATION)
    assert divergence(ensemble, found) <= 1e-5
    common = find_common(ensemble.members, PackSettings())
    ladder = Ladder(ensemble.members, common, Choices.of(PackSettings()))
    ladder = ladder.weighted(measure_sensitivity(ensemble, common, VALIDATION))
    rung = sum(widths(found).values()) - 2  # two tensors of one bit are the lowest rung
    assert widths(found) == {name: form.bits for name, form in ladder.at(rung).forms.items()}
    narrower = {name: form.bits for name, form in ladder.at(rung - 1).forms.items()}
    assert divergence(ensemble, compress(ensemble, Bits(narrower))) > 1e-5


def test_each_attempt_is_told_with_its_quality(ensemble: Ensemble) -> None:
    told: list[tuple[Ensemble, Quality]] = []
    found = compress(
        ensemble,
        MaxLoss(kl=1e-5),
        settings=PackSettings(),
        validation=VALIDATION,
        on_attempt=lambda *attempt: told.append(attempt),
    )
    # The top, and then half of the 14 upgrades of two tensors again and again.
    assert 4 <= len(told) <= 5
    for tried, quality in told:
        assert quality.kl == pytest.approx(divergence(ensemble, tried), rel=1e-6)
    assert found.nbytes == min(tried.nbytes for tried, quality in told if quality.kl <= 1e-5)


@pytest.mark.slow
def test_a_loss_of_likelihood_is_kept(ensemble: Ensemble) -> None:
    compressed = compress(ensemble, MaxLoss(nll_increase=1e-4), validation=VALIDATION)
    before, after = (
        negative_log_likelihood(e.predict_batches(VALIDATION), TARGETS) for e in (ensemble, compressed)
    )
    assert after - before <= 1e-4


def test_a_quality_that_eight_bits_cannot_reach_is_refused() -> None:
    ensemble = Ensemble(close_members(2, spread=3.0), make_mlp)
    with pytest.raises(
        ValueError,
        match=r"MaxLoss\(kl=1e-09, nll_increase=None\) cannot be met: with 8 bits .* Quality",
    ):
        compress(ensemble, MaxLoss(kl=1e-9), settings=PackSettings(base_bits=None), validation=VALIDATION)


def test_fresh_batch_norm_is_kept_only_where_it_helps(ensemble: Ensemble) -> None:
    plain = compress(ensemble, Bits(1))
    refreshed = plain.with_fresh_batch_norm(TRAINING)
    assert divergence(ensemble, refreshed) < divergence(ensemble, plain)
    found = compress(ensemble, Bits(1), validation=VALIDATION, refresh=TRAINING)
    assert divergence(ensemble, found) == divergence(ensemble, refreshed)
    misleading = [10 + 100 * x for x, _ in TRAINING]
    found = compress(ensemble, Bits(1), validation=VALIDATION, refresh=misleading)
    assert divergence(ensemble, found) == divergence(ensemble, plain)


def test_fresh_batch_norm_is_judged_and_kept_with_the_temperatures(ensemble: Ensemble) -> None:
    hot = ensemble.with_members(ensemble.members, temperatures=Temperatures(1.3))
    plain = compress(hot, Bits(1))
    fresh = plain.with_fresh_batch_norm(TRAINING)
    expected = plain.with_members(fresh.members, temperatures=hot.temperatures)
    assert divergence(hot, expected) < divergence(hot, plain) < divergence(hot, fresh)
    found = compress(hot, Bits(1), validation=VALIDATION, refresh=TRAINING)
    assert found.temperatures == Temperatures(1.3)
    assert divergence(hot, found) == divergence(hot, expected)


@pytest.mark.parametrize("files", [False, True])
def test_fresh_batch_norm_that_does_not_fit_the_budget_is_not_kept(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, files: bool
) -> None:
    members = [dict(member) for member in ensemble.members]
    for member in members:  # the same statistics are stored once, fresh ones for each member
        member |= {name: members[0][name] for name in ("1.running_mean", "1.running_var")}
    same = Ensemble(members, make_mlp)
    plain = compress(same, Bits(1))
    budget = Budget(plain.file_bytes() if files else plain.nbytes, files=files)
    fresh = plain.with_fresh_batch_norm(TRAINING)
    assert (fresh.file_bytes() if files else fresh.nbytes) > budget.bytes

    def measure(_: QualityEvaluator, made: Ensemble) -> Quality:
        return Quality(0.4 if made.nbytes > plain.nbytes else 0.5, None)  # fresh statistics are better

    monkeypatch.setattr(QualityEvaluator, "measure", measure)
    found = compress(same, budget, settings=PackSettings(), validation=VALIDATION, refresh=TRAINING)
    assert found.nbytes == plain.nbytes
    assert_same_weights(found.members[7], plain.members[7])


def test_distillation_that_does_not_fit_the_budget_is_not_kept(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = compress(ensemble, Bits(1))
    better = compress(ensemble, Bits(2))
    monkeypatch.setattr(import_module("pfge.compression.compress"), "distil", lambda *_, **__: better)
    message = f"after which it takes {better.nbytes:,} bytes, more than the budget of {plain.nbytes:,}"
    with pytest.warns(UserWarning, match=message):
        found = compress(
            ensemble, Budget(plain.nbytes), settings=PackSettings(), validation=VALIDATION, distil=TRAINING
        )
    assert_same_weights(found.members[0], plain.members[0])


def test_members_that_are_not_close_are_warned_about() -> None:
    # Two members w and -w: their mean is 0, and infinitely far in its own lengths.
    members = [{"weight": sign * torch.ones(2, 64)} for sign in (1, -1)]
    with pytest.warns(UserWarning, match="lie inf% of the base's length from it"):
        compress(Ensemble(members, make_mlp))
    # Members at 0.5 and 1.5 of their mean: a delta saves one bit, and the base costs 8 / 2.
    members = [{"weight": size * torch.ones(2, 64)} for size in (0.5, 1.5)]
    with pytest.warns(UserWarning, match=r"lie 50% .* saves 1.0 bits a number, and the base costs 4.0 for"):
        compress(Ensemble(members, make_mlp))
    compress(Ensemble(members, make_mlp), Bits(8), settings=PackSettings(base_bits=None))


def test_that_warning_says_how_the_bytes_compare() -> None:
    members = [{"weight": size * torch.ones(2, 64), "bias": size * torch.ones(3)} for size in (0.5, 1.5)]
    ensemble = Ensemble(members, make_mlp)
    # Base: 128 bytes and 2 steps of 2. Deltas: 3 bits of 128 numbers, and 2 steps. Biases: 12 bytes.
    form = 128 + 4 + 2 * (48 + 4 + 12)
    plain = 2 * (128 + 4 + 12)
    message = f"this format takes {form} bytes, and each member by itself in 8 bits, without a base, {plain}$"
    with pytest.warns(UserWarning, match=message):
        compress(ensemble)
    assert compress(ensemble, Bits(8), settings=PackSettings(base_bits=None)).nbytes == plain
    # A base of 32 bits costs 16 for each, and a matrix that all share is stored once in both forms.
    frozen = Ensemble([member | {"frozen": torch.zeros(5, 4)} for member in members], make_mlp)
    form, plain = 4 * 128 + 2 * (128 + 4 + 12) + 80, plain + 80
    with pytest.warns(
        UserWarning, match=f"base costs 16.0 for .* takes {form} bytes, .* without a base, {plain}$"
    ):
        compress(frozen, Bits(8), settings=PackSettings(base_bits=32))
    assert compress(frozen, Bits(8), settings=PackSettings(base_bits=None)).nbytes == plain


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (Bits(9), {}, "delta_bits must be 1 to 8, got 9"),
        (Bits(0), {}, "delta_bits must be 1 to 8, got 0"),
        (Bits(16), {}, "delta_bits must be 1 to 8, got 16"),
        (MaxLoss(kl=0.1), {}, "MaxLoss, refresh and distil need validation data; pass validation=b"),
        (Bits(3), {"refresh": TRAINING}, "MaxLoss, refresh and distil need validation data"),
        (Bits(3), {"distil": TRAINING}, "MaxLoss, refresh and distil need validation data"),
        (
            Bits(3),
            {"distil": [], "validation": VALIDATION},
            "batches ended before the last iteration; pass a DataLoader",
        ),
        (
            MaxLoss(nll_increase=0.1),
            {"validation": [VALIDATION[0][0]]},
            "a pair of inputs and a tensor of targets, or a dict with labels, got a Tensor; pass targets=",
        ),
    ],
)
def test_bad_input_is_refused(
    ensemble: Ensemble, target: Bits | MaxLoss, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        compress(ensemble, target, **options)


def test_a_number_is_no_target(ensemble: Ensemble) -> None:
    with pytest.raises(TypeError, match=r"target must be Bits, Budget or MaxLoss, got 3; for example Bits"):
        compress(ensemble, 3)  # type: ignore[arg-type]


def test_an_empty_ensemble_is_refused() -> None:
    with pytest.raises(ValueError, match="compressing needs at least one member"):
        compress(Ensemble([], make_mlp))


@pytest.mark.parametrize("name", CASES)
def test_each_task_is_compressed_to_a_divergence_and_an_increase_of_its_own_nll(name: str) -> None:
    case = CASES[name]
    ensemble = case.ensemble(8)
    told: list[tuple[Ensemble, Quality]] = []
    target = MaxLoss(kl=1e-4, nll_increase=1e-3)
    found = compress(
        ensemble,
        target,
        settings=PackSettings(group=8),
        validation=[(case.inputs, case.targets)],
        on_attempt=lambda *attempt: told.append(attempt),
    )
    expected, packed = ensemble.predict(case.inputs), found.predict(case.inputs)
    ((_, quality),) = [attempt for attempt in told if attempt[0] is found]
    assert quality.kl == pytest.approx(case.task.divergence(expected, packed))
    assert 0 < quality.kl <= 1e-4
    before, after = (case.task.summarize(case.task.score(p, case.targets))["nll"] for p in (expected, packed))
    assert quality.nll_increase == pytest.approx(after - before)
    assert after - before <= 1e-3


def test_a_task_without_a_likelihood_has_no_increase_of_it() -> None:
    ensemble = Ensemble([{"weight": torch.eye(4)}], lambda: nn.Linear(4, 4, bias=False), task=Raw())
    with pytest.raises(ValueError, match=r"got Raw\(\); pass MaxLoss\(kl="):
        compress(ensemble, MaxLoss(nll_increase=0.1), validation=[(torch.eye(4), torch.eye(4))])


@pytest.mark.parametrize("target", [MaxLoss(kl=0.1), MaxLoss(nll_increase=0.1)], ids=str)
def test_validation_batches_of_several_shapes_are_refused_with_the_remedy(target: MaxLoss) -> None:
    task = Classification(dim=-1)
    ensemble = Ensemble([{"weight": torch.eye(4)}], lambda: nn.Linear(4, 4, bias=False), task=task)
    texts = [(torch.randn(2, length, 4), torch.zeros(2, length, dtype=torch.int64)) for length in (3, 5)]
    with pytest.raises(ValueError, match=r"predictions of one shape .* pad them to one length"):
        compress(ensemble, target, validation=texts)


def test_distillation_is_kept_and_lowers_the_divergence(ensemble: Ensemble) -> None:
    settings = PackSettings(small_bits=16)
    plain = compress(ensemble, Bits(1), settings=settings)
    told: list[int] = []
    found = compress(
        ensemble,
        Bits(1),
        settings=settings,
        validation=VALIDATION,
        distil=TRAINING,
        distillation=Distillation(iterations=40),
        on_iteration=lambda done, total, loss: told.append(done),  # noqa: ARG005
    )
    assert divergence(ensemble, found) < 0.5 * divergence(ensemble, plain)
    assert found.nbytes == plain.nbytes
    assert told == list(range(1, 8 * 40 + 1))


def test_targets_that_are_named_are_no_input_of_any_pass(ensemble: Ensemble) -> None:
    def swap(batches: list[Any]) -> list[Any]:
        return [(y, x) for x, y in batches]

    options: dict[str, Any] = {"distillation": Distillation(iterations=2)}
    target = MaxLoss(kl=0.1, nll_increase=0.1)
    expected = compress(ensemble, target, validation=VALIDATION, refresh=TRAINING, distil=TRAINING, **options)
    data = {"validation": swap(VALIDATION), "refresh": swap(TRAINING), "distil": swap(TRAINING)}
    found = compress(ensemble, target, targets=0, **data, **options)
    assert found.digest == expected.digest
    three = [(x, y, y) for x, y in VALIDATION]
    with pytest.raises(ValueError, match="a batch of 3 entries does not say which one is the targets"):
        compress(ensemble, target, validation=three)


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        (0.9, "kept as it was before distillation, which changed the validation KL from"),
        (1e30, "kept as it was before distillation: distillation diverged at iteration 2 of member 1; lower"),
    ],
)
def test_distillation_that_makes_things_worse_is_not_kept(
    ensemble: Ensemble, rate: float, message: str
) -> None:
    with pytest.warns(UserWarning, match=message):
        found = compress(
            ensemble,
            Bits(1),
            validation=VALIDATION,
            distil=TRAINING,
            distillation=Distillation(iterations=3, rate=rate),
        )
    for one, two in zip(found.members, compress(ensemble, Bits(1)).members, strict=True):
        assert_same_weights(one, two)


@pytest.mark.parametrize("last", [0.0, 1e-7, -1e-7])
def test_what_changes_the_divergence_by_rounding_is_not_kept(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, last: float
) -> None:
    measured = iter([0.5, 0.5 + last, 0.5 + 2 * last])
    monkeypatch.setattr(QualityEvaluator, "measure", lambda *_: Quality(next(measured), None))
    with pytest.warns(UserWarning, match="kept as it was before distillation, which changed the validation"):
        found = compress(
            ensemble,
            Bits(1),
            validation=VALIDATION,
            refresh=TRAINING,
            distil=TRAINING,
            distillation=Distillation(iterations=1),
        )
    for one, two in zip(found.members, compress(ensemble, Bits(1)).members, strict=True):
        assert_same_weights(one, two)


@pytest.mark.parametrize("last", [0.0, 1e-7, -1e-7])
def test_of_plans_that_are_as_good_up_to_rounding_that_without_measured_weights_is_taken(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, last: float
) -> None:
    budget, settings = Budget(compress(ensemble, Bits(2)).nbytes + 24), PackSettings()
    weights = {"0.weight": 1e9}
    monkeypatch.setattr(import_module("pfge.compression.compress"), "measure_sensitivity", lambda *_: weights)
    measured = iter([0.5, 0.5 + last])
    monkeypatch.setattr(QualityEvaluator, "measure", lambda *_: Quality(next(measured), None))
    found = compress(ensemble, budget, settings=settings, validation=VALIDATION)
    assert next(measured, None) is None  # both were measured
    assert_same_weights(found.members[3], compress(ensemble, budget, settings=settings).members[3])


@pytest.mark.slow
def test_distillation_reaches_a_quality_in_fewer_bytes(ensemble: Ensemble) -> None:
    sizes = [
        compress(ensemble, MaxLoss(kl=1e-5), settings=PackSettings(), validation=VALIDATION, **options).nbytes
        for options in ({}, {"distil": TRAINING, "distillation": Distillation(iterations=20)})
    ]
    assert sizes[1] < sizes[0]


def make_wide_mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 3)
    )


def ensemble_with_a_dead_channel() -> Ensemble:
    """Members near one point; behind their ReLU, channel 5 is always 0 and channel 7 is quiet."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        start = make_wide_mlp().state_dict()
        members = []
        for _ in range(4):
            noise = {n: torch.randn(t.shape) for n, t in start.items() if t.is_floating_point()}
            member = {n: t + 0.05 * noise[n] if n in noise else t.clone() for n, t in start.items()}
            member["0.weight"][7] *= 0.05
            member["0.bias"][7] = 0.02
            member["0.weight"][5] = 0
            member["0.bias"][5] = -1
            members.append(member)
        return Ensemble(members, make_wide_mlp).with_fresh_batch_norm([torch.randn(256, 8)])


WIDE_INPUTS = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("target", "options"),
    [
        (Bits(3), {"settings": PackSettings(small_bits=4)}),
        (Budget(2700), {}),
        (Budget(2700), {"validation": [WIDE_INPUTS]}),
    ],
)
def test_a_dead_channel_before_batch_norm_does_not_spoil_a_quiet_one(
    target: Bits | Budget, options: dict[str, Any]
) -> None:
    ensemble = ensemble_with_a_dead_channel()
    variances = [member["2.running_var"] for member in ensemble.members]
    assert all(float(variance[5]) == 0 < float(variance[7]) < 1e-3 for variance in variances)
    found = compress(ensemble, target, **options)
    for member, variance in zip(found.members, variances, strict=True):
        assert bool((member["2.running_var"] >= 0).all())
        torch.testing.assert_close(member["2.running_var"][7], variance[7], rtol=0.1, atol=0)
    assert kl_divergence(ensemble.predict(WIDE_INPUTS), found.predict(WIDE_INPUTS)) < 0.01


class Roots(torch.nn.Module):
    """A model that has no predictions if one of its numbers is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.roots = torch.nn.Parameter(torch.ones(3, 8))
        self.weight = torch.nn.Parameter(torch.ones(8, 8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight.T @ self.roots.sqrt().T


def ensemble_of_roots() -> Ensemble:
    generator = torch.Generator().manual_seed(0)
    roots = 2 + torch.rand(3, 8, generator=generator)
    weight = torch.randn(8, 8, generator=generator)
    members = []
    for _ in range(4):
        root = roots + 0.1 * torch.randn(3, 8, generator=generator)
        root[:, 0] = 0.02 * torch.rand(3, generator=generator)
        members.append({"roots": root, "weight": weight + 0.1 * torch.randn(8, 8, generator=generator)})
    return Ensemble(members, Roots)


def test_a_plan_whose_predictions_are_no_numbers_is_not_taken() -> None:
    ensemble = ensemble_of_roots()
    told: list[Quality] = []
    found = compress(
        ensemble,
        Budget(300),
        validation=[WIDE_INPUTS],
        on_attempt=lambda _, quality: told.append(quality),
    )
    assert [isfinite(quality.kl) for quality in told] == [False, True]
    divergence = kl_divergence(ensemble.predict(WIDE_INPUTS), found.predict(WIDE_INPUTS))
    assert divergence == pytest.approx(told[1].kl)


@pytest.mark.parametrize("target", [Bits(1), Budget(10_000)])
def test_predictions_that_are_no_numbers_in_any_plan_are_refused(target: Bits | Budget) -> None:
    ensemble = ensemble_of_roots()
    ensemble.members[1]["roots"].neg_()
    message = (
        "the KL on the validation batches must be finite, got nan for every plan that was tried; give "
        "more bits or bytes, or check that the original ensemble predicts finite numbers on these batches"
    )
    with pytest.raises(ValueError, match=message):
        compress(ensemble, target, validation=[WIDE_INPUTS], refresh=[WIDE_INPUTS])


def test_a_quality_that_is_no_number_is_not_kept() -> None:
    ensemble = ensemble_of_roots()
    found = compress(ensemble, MaxLoss(kl=0.01), settings=PackSettings(), validation=[WIDE_INPUTS])
    assert kl_divergence(ensemble.predict(WIDE_INPUTS), found.predict(WIDE_INPUTS)) <= 0.01


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("before", "after", "is_fresh"),
    [(NAN, 0.5, True), (INF, 0.5, True), (0.5, NAN, False), (0.5, INF, False), (0.5, 0.4, True)],
)
def test_fresh_batch_norm_is_better_than_no_numbers(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch, before: float, after: float, is_fresh: bool
) -> None:
    qualities = iter([Quality(before, None), Quality(after, None)])
    monkeypatch.setattr(QualityEvaluator, "measure", lambda *_: next(qualities))
    plain = compress(ensemble, Bits(3))
    expected = plain.with_fresh_batch_norm(TRAINING) if is_fresh else plain
    found = compress(ensemble, Bits(3), validation=VALIDATION, refresh=TRAINING)
    for one, two in zip(found.members, expected.members, strict=True):
        assert_same_weights(one, two)


def test_distillation_is_better_than_no_numbers(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    qualities = iter([Quality(NAN, None), Quality(0.5, None)])
    monkeypatch.setattr(QualityEvaluator, "measure", lambda *_: next(qualities))
    settings = Distillation(iterations=2)
    found = compress(ensemble, Bits(1), validation=VALIDATION, distil=TRAINING, distillation=settings)
    expected = distil(ensemble, compress(ensemble, Bits(1)), TRAINING, settings)
    for one, two in zip(found.members, expected.members, strict=True):
        assert_same_weights(one, two)


@pytest.mark.parametrize("target", [Bits(3), Budget(85_000)])
def test_four_members_of_a_mostly_frozen_model_take_less_than_half_of_one(
    target: Bits | Budget, tmp_path: Path
) -> None:
    collector = PFGE(cycle=2, period=4)
    advance(make_trajectory(collector), 16)
    ensemble = Ensemble.from_collector(collector, make_frozen_model, forward=classify)
    one = count_bytes(ensemble.members[0])
    small = compress(ensemble, target)
    assert small.nbytes <= 0.4 * one
    small.save(tmp_path / "small")
    assert bytes_of_folder(tmp_path / "small") <= 0.4 * one
    loaded = Ensemble.load(tmp_path / "small", make_frozen_model, forward=classify)
    assert len(loaded) == 4
    assert loaded.nbytes <= 0.4 * one  # in memory, too
    torch.testing.assert_close(loaded.predict(X), ensemble.predict(X), rtol=0, atol=0.01)


class Narrow(nn.Module):
    """A layer whose weights are floating-point numbers of 8 bits, and one of others."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 64).to(dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(3).to(dtype), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight.float().T + self.bias.float()) * self.scale


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("target", [Bits(4), Budget(600), MaxLoss(kl=1e-2)], ids=repr)
def test_members_of_eight_bits_are_compressed_and_have_their_type_again(
    target: Bits | Budget | MaxLoss, dtype: torch.dtype, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(0)
    members = [
        {
            "weight": (1 + 0.1 * torch.randn(3, 64, generator=generator)).to(dtype),
            "bias": torch.randn(3, generator=generator).to(dtype),
            "scale": torch.ones(3),
        }
        for _ in range(4)
    ]
    ensemble = Ensemble(members, lambda: Narrow(dtype))
    inputs = torch.randn(20, 64, generator=generator)
    compressed = compress(ensemble, target, validation=[inputs])
    compressed.save(tmp_path)
    loaded = Ensemble.load(tmp_path, lambda: Narrow(dtype))
    assert loaded.nbytes == compressed.nbytes < ensemble.nbytes
    assert {name: tensor.dtype for name, tensor in loaded.members[0].items()} == {
        name: tensor.dtype for name, tensor in members[0].items()
    }
    # What is not quantized is as it was, to the last bit.
    assert torch.equal(loaded.members[1]["bias"].float(), members[1]["bias"].float())
    assert torch.equal(loaded.predict(inputs), compressed.predict(inputs))
    assert kl_divergence(ensemble.predict(inputs), loaded.predict(inputs)) < 0.01


def test_a_number_of_eight_bits_that_is_rounded_beyond_the_largest_one_becomes_that() -> None:
    largest = torch.finfo(torch.float8_e4m3fn).max
    members = [
        {"weight": torch.tensor([[largest, -largest, 300.0, 1.0 + k]]).to(torch.float8_e4m3fn)}
        for k in range(3)
    ]
    for bits in (1, 2):
        packed = compress(Ensemble(members, lambda: nn.Linear(4, 1)), Bits(bits))
        assert all(bool(member["weight"].float().isfinite().all()) for member in packed.members)
