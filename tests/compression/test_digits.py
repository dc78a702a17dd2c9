"""What compression and cascades promise, on real images: digits, in a run of 15 passes."""

from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path

import pytest
from torch import Tensor

from pfge import Cascade, Ensemble, fit_cascade
from pfge.compression import Bits, Budget, MaxLoss, PackSettings, compress
from pfge.lab.config.toml import load_experiment
from pfge.lab.data import Batch
from pfge.lab.engine import Engine
from pfge.lab.experiments.compare import compare
from pfge.lab.run.folder import RunFolder
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Session
from pfge.metrics import kl_divergence, negative_log_likelihood

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:the temperature stays 1")]

# Cycles of half an epoch and periods of five of them: 4 members of PFGE, 20 of FGE.
SETTINGS = [
    "seeds=[1]",
    "data.validation_from_test=true",
    "ensemble.methods=['PFGE', 'FGE']",
    "pretrain.epochs=3",
    "ensemble.cycle=0.5",
    "ensemble.period=2.5",
    "ensemble.length=10",
]


@dataclass(frozen=True)
class Part:
    """Validation or test images, and what an ensemble is worth on them."""

    batches: list[Batch]
    labels: Tensor

    def right(self, ensemble: Ensemble) -> int:
        return int((ensemble.predict_batches(self.batches).argmax(dim=1) == self.labels).sum())

    def nll(self, ensemble: Ensemble) -> float:
        return negative_log_likelihood(ensemble.predict_batches(self.batches), self.labels)

    def kl(self, original: Ensemble, other: Ensemble) -> float:
        return kl_divergence(original.predict_batches(self.batches), other.predict_batches(self.batches))

    def lost(self, cascade: Cascade, ensemble: Ensemble) -> int:
        """Count what all members get right and the cascade does not."""
        whole = ensemble.predict_batches(self.batches).argmax(dim=1)
        found = cascade.predict_batches(ensemble, self.batches).probabilities.argmax(dim=1)
        return int(((whole == self.labels) & (found != self.labels)).sum())


@dataclass(frozen=True)
class Digits:
    pfge: Ensemble
    fge: Ensemble
    validation: Part
    test: Part
    training: list[Batch]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    path = tmp_path_factory.mktemp("runs") / "digits"
    experiment = load_experiment(None, SETTINGS)
    compare(experiment, path, Reporter(quiet=True))
    session = Session.set_up(experiment, RunFolder(path), Engine(experiment.engine), Reporter(quiet=True))
    validation, test = (
        Part(list(session.in_batches(data)), data.labels)
        for data in (session.splits.validation, session.splits.test)
    )
    pfge, fge = (session.load_ensemble(session.folder.ensemble(1, name)) for name in ("PFGE", "FGE"))
    assert (len(pfge), len(fge), len(validation.labels), len(test.labels)) == (4, 20, 398, 399)
    return Digits(pfge, fge, validation, test, list(session.batch_norm_batches(1)))


def bytes_by_hand(ensemble: Ensemble, bits: int) -> int:
    """Bytes of an int8 base, deltas in groups of 64 and the rest in float16, from the shapes alone."""
    total = 0
    for tensor in ensemble.members[0].values():
        numbers = prod(tensor.shape)
        if tensor.ndim >= 2:
            total += 8 * ceil(numbers / 8) + 2 * tensor.shape[0]
            total += len(ensemble) * (bits * ceil(numbers / 8) + 2 * ceil(numbers / 64))
        elif tensor.is_floating_point():
            total += 2 * numbers * len(ensemble)
        else:
            total += 8  # a counter that all members share
    return total


def bytes_on_disk(ensemble: Ensemble, folder: Path) -> int:
    ensemble.save(folder)
    return sum(file.stat().st_size for file in folder.iterdir())


def test_four_pfge_members_in_three_bits_take_less_than_one_model_and_predict_the_same(
    digits: Digits, tmp_path: Path
) -> None:
    one = digits.pfge.last(1).nbytes
    packed = compress(digits.pfge, Bits(3), settings=PackSettings(small_bits=16))
    # 8 + 4 * 3 bits and 4 steps of 16 bits for 64 numbers, of 32: 0.66 of one model; BatchNorm is the rest.
    assert packed.nbytes == bytes_by_hand(digits.pfge, 3) < 0.70 * one
    assert bytes_on_disk(packed, tmp_path) < 0.72 * one
    assert abs(digits.test.right(packed) - digits.test.right(digits.pfge)) <= 1
    assert digits.test.kl(digits.pfge, packed) <= 0.001


def test_twenty_fge_members_in_a_bit_each_keep_their_likelihood(digits: Digits, tmp_path: Path) -> None:
    one = digits.fge.last(1).nbytes
    packed = compress(digits.fge, Bits(1), settings=PackSettings(small_bits=16))
    # 8 + 20 bits and 20 steps of 16 bits for 64 numbers, of 32: 1.03 of one model; BatchNorm is the rest.
    assert packed.nbytes == bytes_by_hand(digits.fge, 1) < 1.21 * one
    assert bytes_on_disk(packed, tmp_path) < 1.23 * one
    assert digits.test.nll(packed) == pytest.approx(digits.test.nll(digits.fge), abs=0.01)


def test_a_divergence_and_a_loss_of_likelihood_are_kept_on_validation_images(digits: Digits) -> None:
    validation, few = digits.validation, digits.fge.last(5)
    wide, narrow = (compress(few, MaxLoss(kl=most), validation=validation.batches) for most in (1e-7, 1e-5))
    assert validation.kl(few, wide) <= 1e-7
    assert 1e-7 < validation.kl(few, narrow) <= 1e-5
    assert narrow.nbytes < wide.nbytes
    found = compress(few, MaxLoss(nll_increase=1e-4), validation=validation.batches)
    assert validation.nll(found) <= validation.nll(few) + 1e-4


def test_a_budget_is_kept_and_data_chooses_the_better_bits_for_it(digits: Digits) -> None:
    even = compress(digits.pfge, Bits(2))
    budget = even.nbytes + 1000
    mixed = compress(digits.pfge, Budget(budget))
    chosen = compress(digits.pfge, Budget(budget), validation=digits.validation.batches)
    assert max(mixed.nbytes, chosen.nbytes) <= budget
    of_even, of_mixed, of_chosen = (digits.validation.kl(digits.pfge, e) for e in (even, mixed, chosen))
    assert of_chosen <= of_mixed
    assert of_chosen < of_even


def test_refreshed_statistics_never_diverge_more_on_validation_images(digits: Digits) -> None:
    for ensemble in (digits.pfge, digits.fge.last(5)):
        plain = compress(ensemble, Bits(1))
        fresh = compress(ensemble, Bits(1), validation=digits.validation.batches, refresh=digits.training)
        always = plain.with_fresh_batch_norm(digits.training)
        expected = min(digits.validation.kl(ensemble, plain), digits.validation.kl(ensemble, always))
        assert digits.validation.kl(ensemble, fresh) == expected


@pytest.mark.parametrize("loss", [0.0, 0.005])
def test_a_cascade_loses_at_most_what_was_stated_on_validation_images(digits: Digits, loss: float) -> None:
    validation = digits.validation
    for ensemble in (digits.fge, compress(digits.fge, Bits(1), settings=PackSettings(small_bits=16))):
        cascade = fit_cascade(ensemble, validation.batches, max_accuracy_loss=loss)
        assert validation.lost(cascade, ensemble) <= loss * 398
        asked = cascade.predict_batches(ensemble, digits.test.batches).evaluated
        assert asked.double().mean() < len(ensemble) / 2


def test_a_cascades_likelihood_is_at_most_as_much_worse_as_was_stated(digits: Digits) -> None:
    validation = digits.validation
    cascade = fit_cascade(digits.fge, validation.batches, max_nll_increase=0.001)
    found = cascade.predict_batches(digits.fge, validation.batches)
    nll = negative_log_likelihood(found.probabilities, validation.labels)
    assert nll <= validation.nll(digits.fge) + 0.001
    assert found.evaluated.double().mean() < len(digits.fge)
