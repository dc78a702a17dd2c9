"""Make a saved ensemble smaller, cheaper or better: compress, cascade, views."""

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.arguments import (
    add_ensemble_arguments,
    command,
    in_words,
    is_in_run,
    load_saved_ensemble,
    members_in_words,
    open_session_of,
    parse_bytes,
    require_other_folder,
    written_file,
)
from pfge.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import Tensor

    from pfge.cascade import Cascade
    from pfge.compression.compress import Quality, Target
    from pfge.ensemble import Ensemble
    from pfge.lab.data import DataPart
    from pfge.lab.session import Session
    from pfge.packed import PackSettings
    from pfge.reports.tables.ensembles import MeasuredWay


NO_GROUP = "none"


def _add_compress_arguments(parser: argparse.ArgumentParser) -> None:
    add_ensemble_arguments(parser)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the compressed copy")
    parser.add_argument(
        "--base-bits",
        choices=(*map(str, range(2, 9)), "16", "32", "none"),
        help="bits of the shared base (default: 8)",
    )
    parser.add_argument("--delta-bits", type=int, metavar="1-8", help="bits of each member (default: 3)")
    parser.add_argument(
        "--group",
        type=parse_group,
        metavar="N",
        help="number of weights that share a quantization step; none for one step per output channel "
        "(default: 64)",
    )
    parser.add_argument(
        "--small-bits",
        type=int,
        choices=(*range(2, 9), 16, 32),
        help="bits of BatchNorm, biases and other small tensors; up to 8 for differences from their mean "
        "(default: 32)",
    )
    parser.add_argument(
        "--budget",
        type=parse_bytes,
        metavar="BYTES",
        help="largest size of the tensors, such as 700kB or 2MB; validation data, if available, decides "
        "between equal and different bits for the tensors",
    )
    parser.add_argument("--files", action="store_true", help="--budget counts all files instead of tensors")
    parser.add_argument(
        "--max-kl",
        type=float,
        metavar="X",
        help="use the fewest bytes whose predictions differ by at most X nats",
    )
    parser.add_argument(
        "--max-nll-increase",
        type=float,
        metavar="X",
        help="use the fewest bytes whose NLL is at most X higher",
    )
    parser.add_argument(
        "--refresh",
        action="store_true",
        help="recompute BatchNorm over training data after compression, and keep the result if it is better",
    )
    parser.add_argument(
        "--distil",
        type=int,
        nargs="?",
        const=200,
        metavar="N",
        help="train the quantization steps of each compressed member for N iterations (default: 200) to "
        "match the original's predictions, and keep the result if it is better; continues where it was "
        "interrupted",
    )


def parse_group(text: str) -> int | str:
    """Return the number of weights that share a step, or "none" for one step per output channel."""
    try:
        return NO_GROUP if text == NO_GROUP else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a number, or none for one step per channel"
        ) from None


@command("store an ensemble's members as one base and a few bits each", _add_compress_arguments)
def compress(options: argparse.Namespace) -> int:
    """Write a compressed copy of a saved ensemble; Ensemble.load opens it like any other.

    --budget chooses how each tensor is stored by the error that each byte removes; --max-kl and
    --max-nll-increase choose it by predictions on validation data. With --base-bits, --group or --small-bits,
    only the bits of members are chosen. Only --max-kl, --max-nll-increase, --refresh and --distil need the
    data.
    """
    from functools import partial

    from torch import nn

    from pfge.compression import Distillation, compress
    from pfge.ensemble import Ensemble
    from pfge.storage.ensemble_folder import prepare_for_overwrite

    out: Path = options.out
    require_other_folder(options)
    target, settings = _target(options), _pack_settings(options)
    resolved = out.resolve()  # "." has an empty name
    checkpoint = resolved.with_name(resolved.name + ".distil.checkpoint")
    if options.distil is not None and options.distil < 1:
        raise InvalidValueError(f"--distil must be at least 1 iteration, got {options.distil}")
    distillation = Distillation(iterations=options.distil or 1, checkpoint=checkpoint)
    prepare_for_overwrite(out)  # before any long work
    session = _open_session(options)
    if session is None:
        # Compression without data needs no model. A partial has no name that could enter the manifest.
        ensemble = Ensemble.load(options.ensemble, partial(nn.Identity))
        compressed = compress(ensemble, target, settings=settings)
    else:
        ensemble = session.load_ensemble(options.ensemble)
        training = session.batch_norm_batches(session.experiment.seeds[0])
        with _distillation_shown(session, options, len(ensemble)) as advance:
            compressed = compress(
                ensemble,
                target,
                settings=settings,
                validation=session.in_batches(session.splits.validation),
                refresh=training if options.refresh else None,
                distil=training if options.distil else None,
                distillation=distillation,
                on_attempt=partial(_say_attempt, session),
                on_iteration=lambda done, _, loss: advance(done, f"KL {loss:.2g}"),
            )
    if session is None or session.engine.is_first:
        compressed.save(out)
        checkpoint.unlink(missing_ok=True)
        files = sum(file.stat().st_size for file in out.iterdir())
        one = ensemble.last(1).nbytes
        print(
            f"{members_in_words(ensemble)}: {ensemble.nbytes:,} bytes before, {compressed.nbytes:,} after "
            f"({compressed.nbytes / one:.2f} of one member), {files:,} on disk with all files"
        )
        if session is not None:
            print(_describe_loss(session, ensemble, compressed))
    return 0


def _target(options: argparse.Namespace) -> "Target":
    from pfge.compression import Bits, Budget, MaxLoss

    ways = [("delta_bits",), ("budget",), ("max_kl", "max_nll_increase")]
    given = [[name for name in way if getattr(options, name) is not None] for way in ways]
    if len(named := [names[0] for names in given if names]) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in named)
        raise InvalidValueError(f"bits must be chosen by one option, got {flags}; leave out all but one")
    if options.delta_bits is not None and not 1 <= options.delta_bits <= 8:
        raise InvalidValueError(f"--delta-bits must be 1 to 8, got {options.delta_bits}")
    if options.files and options.budget is None:
        raise InvalidValueError(
            "--files changes what --budget counts, but --budget is missing; add it, such as --budget 700kB"
        )
    if options.budget is not None:
        return Budget(options.budget, files=options.files)
    if options.max_kl is not None or options.max_nll_increase is not None:
        return MaxLoss(kl=options.max_kl, nll_increase=options.max_nll_increase)
    return Bits() if options.delta_bits is None else Bits(options.delta_bits)


def _pack_settings(options: argparse.Namespace) -> "PackSettings | None":
    """Return the given pack settings; None if all of them are to be chosen."""
    from pfge.compression import PackSettings

    usual = PackSettings()
    given = (options.base_bits, options.group, options.small_bits)
    if given == (None, None, None):
        return None
    base_bits = {None: usual.base_bits, "none": None}.get(options.base_bits, options.base_bits)
    group = {None: usual.group, NO_GROUP: None}.get(options.group, options.group)
    return PackSettings(None if base_bits is None else int(base_bits), group, options.small_bits or 32)


@contextmanager
def _distillation_shown(
    session: "Session", options: argparse.Namespace, members: int
) -> "Iterator[Callable[[int, str], None]]":
    if options.distil is None:
        yield lambda done, about: None  # noqa: ARG005
    else:
        with session.reporter.task("distillation", options.distil * members) as advance:
            yield advance


def _open_session(options: argparse.Namespace) -> "Session | None":
    """Set up the experiment if its data is needed, or if its data is known and helps to choose bits."""
    needed = (
        options.refresh
        or options.distil
        or options.max_kl is not None
        or options.max_nll_increase is not None
    )
    given = options.config or options.set
    if not needed and not given and (options.budget is None or not is_in_run(options.ensemble)):
        return None
    try:
        session = open_session_of(options)
        session.validation_for("measuring what compression costs")
    except ValueError as error:
        if needed or given:
            raise
        warnings.warn(f"bits are chosen without data: {error}", stacklevel=2)
        return None
    return session


def _say_attempt(session: "Session", tried: "Ensemble", quality: "Quality") -> None:
    nll = "" if quality.nll_increase is None else f", NLL {quality.nll_increase:+.6f}"
    session.reporter.say(f"tried {tried.nbytes:,} bytes: KL {quality.kl:.6f}{nll}")


def _describe_loss(session: "Session", ensemble: "Ensemble", compressed: "Ensemble") -> str:
    from pfge.compression.compress import QualityEvaluator

    data = session.splits.validation
    quality = QualityEvaluator(ensemble, session.in_batches(data), with_targets=True).measure(compressed)
    return (
        f"On {len(data):,} validation examples: KL {quality.kl:.6f} from the original's "
        f"predictions, NLL {quality.nll_increase:+.6f}"
    )


def _add_cascade_arguments(parser: argparse.ArgumentParser) -> None:
    add_ensemble_arguments(parser)
    parser.add_argument(
        "--max-accuracy-loss",
        type=float,
        default=0.001,
        metavar="SHARE",
        help="largest fraction of validation examples that all members together classify correctly and the "
        "cascade does not (default: 0.001)",
    )
    parser.add_argument(
        "--max-nll-increase",
        type=float,
        metavar="X",
        help="largest increase of the NLL over that of all members, on validation data",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file (default: ENSEMBLE/cascade.json)")


@command("evaluate fewer members: stop where the prediction is confident", _add_cascade_arguments)
def cascade(options: argparse.Namespace) -> int:
    """Fit on validation data how confident a prediction must be to stop.

    Write the cascade for `pfge predict --cascade`, and print its quality, members and time on the test set.
    """
    from pfge.calibration import UNSCALED, fit_temperature, log_probabilities
    from pfge.cascade import bind_to, fit_to_answers, require_a_loss
    from pfge.cli.tables import print_cascade

    losses = {
        "max_accuracy_loss": options.max_accuracy_loss,
        "max_nll_increase": options.max_nll_increase,
    }
    require_a_loss(**losses)  # before any prediction
    out = written_file(options, "cascade.json")
    session = open_session_of(options)
    session.require_one_class("a cascade")
    validation, test = session.validation_for("fitting a cascade"), session.splits.test
    ensemble = load_saved_ensemble(session, options.ensemble)
    answers, _ = _predict_each(session, ensemble, validation, "validation data")
    targets = validation.labels.cpu()
    cascade = bind_to(fit_to_answers(answers, targets, ensemble.temperatures, **losses), ensemble)
    is_calibrated = ensemble.temperatures != UNSCALED
    own = 1.0
    if is_calibrated:  # so one member alone is calibrated too
        own = fit_temperature(log_probabilities(answers[cascade.order[0]]), targets).value
    session.engine.on_rank_zero(lambda: cascade.save(out))
    answers, seconds = _predict_each(session, ensemble, test, "test data")
    if session.engine.is_first:
        print_cascade(
            _measure_ways(cascade, ensemble, answers, test.labels.cpu(), seconds, own),
            session.task,
            f"{ensemble.method or 'ensemble'}, {len(ensemble)} members: test set, {len(test):,} examples",
            calibrated=is_calibrated,
        )
        print(f"{_describe_cascade(cascade)}: {out}")
    return 0


def _predict_each(
    session: "Session", ensemble: "Ensemble", data: "DataPart", name: str
) -> "tuple[Tensor, list[float]]":
    """Return the probabilities of each member, [K, N, C], and the seconds that each took."""
    from time import perf_counter

    import torch

    answers, seconds = [], []
    with session.reporter.task(f"members on {name}", len(ensemble)) as advance:
        start = perf_counter()
        for done, member in enumerate(ensemble.predict_each(session.in_batches(data)), 1):
            answers.append(member.cpu())
            seconds.append(perf_counter() - start)
            advance(done, "")
            start = perf_counter()
    return torch.stack(answers), seconds


def _measure_ways(
    cascade: "Cascade",
    ensemble: "Ensemble",
    answers: "Tensor",
    labels: "Tensor",
    seconds: list[float],
    own: float,
) -> "list[MeasuredWay]":
    """Return the scores and cost of one member, the cascade and all members.

    Args:
        cascade: The fitted cascade.
        ensemble: Its ensemble.
        answers: The members' probabilities, [K, N, C].
        labels: The true classes, [N].
        seconds: The time that each member took.
        own: Temperature of the first member alone.
    """
    from pfge.calibration import Temperatures
    from pfge.cascade import NEVER, Cascade
    from pfge.metrics.scores import score_examples
    from pfge.reports.tables.ensembles import MeasuredWay

    first = cascade.order[0]
    ways = {
        "one member": Cascade((0,), NEVER).replay(answers[first : first + 1], Temperatures(own)),
        "cascade": cascade.replay(answers, ensemble.temperatures),
        "all members": Cascade(cascade.order, NEVER).replay(answers, ensemble.temperatures),
    }
    return [
        MeasuredWay(
            name,
            found.evaluated.double().mean().item(),
            int(found.evaluated.max()),
            score_examples(found.probabilities, labels),
            sum(
                (found.evaluated >= position).double().mean().item() * seconds[member]
                for position, member in enumerate(cascade.order, 1)
            ),
        )
        for name, found in ways.items()
    ]


def _describe_cascade(cascade: "Cascade") -> str:
    """Describe in words when a cascade stops."""
    order = "Members are evaluated in the order " + ", ".join(map(str, cascade.order))
    if not cascade.thresholds:
        return order
    first, last = (f"{threshold:.4f}" for threshold in (cascade.thresholds[0], cascade.thresholds[-1]))
    falling = f", falling to {last}" if last != first else ""
    agreeing = " and all agree" if cascade.rule == "agreement" else ""
    return f"{order}, until the confidence is at least {first}{falling}{agreeing}"


def _add_views_arguments(parser: argparse.ArgumentParser) -> None:
    add_ensemble_arguments(parser)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the copy")
    parser.add_argument(
        "--count",
        type=int,
        default=4,
        metavar="N",
        help="largest number of views, including the unchanged image (default: 4)",
    )


@command("write a copy of an ensemble that sees each image in several views", _add_views_arguments)
def views(options: argparse.Namespace) -> int:
    """Write a copy of a saved ensemble for test-time augmentation.

    Every member predicts each image as it is, shifted and mirrored, as in training (data.crop_padding,
    data.flip), and the predictions are averaged. This takes forward passes, not memory. If there is
    validation data, a temperature is fitted on it. The other commands use the copy like any ensemble.
    """
    from pfge.lab.evaluation.passes import views_in
    from pfge.storage.ensemble_folder import prepare_for_overwrite

    out: Path = options.out
    require_other_folder(options)
    if options.count < 2:
        raise InvalidValueError(
            f"--count must be at least 2, because one view is the unchanged image, got {options.count}"
        )
    prepare_for_overwrite(out)  # before any long work
    session = open_session_of(options)
    session.require_one_class("a mean over views")
    views = views_in(session, options.count, "a mean over views")
    if len(views) < 2:
        raise InvalidValueError(
            "views repeat the augmentation of training, so data.crop_padding must be above 0 or data.flip "
            "true, got 0 and false; set one, for example by --set data.flip=true"
        )
    plain = session.load_ensemble(options.ensemble)
    seen = plain.in_views(views)
    data = session.splits.validation
    if len(data):
        seen = seen.calibrated(session.in_batches(data))
    if not session.engine.is_first:
        return 0
    seen.save(out)
    if not len(data):
        print(f"{out}: {len(views)} views of each image; without validation data, no temperature was fitted")
        return 0
    print(f"{out}: {len(views)} views of each image, temperature {seen.temperatures.pooled:.3f}")
    # Each at its own temperature: the rest of the difference comes from the views.
    at_temperature = plain.calibrated(session.in_batches(data))
    print(f"On {len(data):,} validation examples, each at its own temperature:")
    for name, ensemble in (("images as they are", at_temperature), ("in views", seen)):
        metrics = session.task.summarize(ensemble.evaluate(session.in_batches(data)))
        print(f"  {name}: {in_words(session.task, metrics)}")
    return 0
