"""`pfge compress`: store an ensemble in fewer bytes."""

import argparse
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pfge.cli.arguments import (
    WHERE_FROM,
    add_ensemble_arguments,
    is_in_run,
    members_in_words,
    open_session_of,
)
from pfge.errors import InvalidValueError

if TYPE_CHECKING:
    from pfge.compression.compress import Quality, Target
    from pfge.ensemble import Ensemble
    from pfge.lab.session import Session
    from pfge.packed import PackSettings

NO_GROUP = "none"
UNITS = {"kB": 1000, "MB": 1000**2, "GB": 1000**3, "": 1}


HELP = "store an ensemble's members as one base and a few bits each"
DESCRIPTION = f"""
Write a compressed copy of a saved ensemble; Ensemble.load opens it like any other. --budget chooses how
each tensor is stored by the error that each byte removes; --max-kl and --max-nll-increase choose it by
predictions on validation data. Given --base-bits, --group or --small-bits, only the bits of members are
chosen. Only --max-kl, --max-nll-increase, --refresh and --distil need the data. {WHERE_FROM}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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
        help="how many numbers share a quantization step; none for one per output channel (default: 64)",
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
        help="largest size of the tensors, such as 700kB or 2MB; if there is validation data, it decides "
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
        help="train the steps of each compressed member for N iterations (default: 200) until it predicts "
        "what the original did, and keep the result if it is better; continues where it was interrupted",
    )


def parse_bytes(text: str) -> int:
    """Return the number of bytes in a text such as 700kB, 2MB or 1000."""
    unit = next(unit for unit in UNITS if text.endswith(unit))
    try:
        return round(float(text.removesuffix(unit)) * UNITS[unit])
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 700kB or 2MB") from None


def parse_group(text: str) -> int | str:
    """Return how many numbers share a step, or "none" for one step per output channel."""
    try:
        return NO_GROUP if text == NO_GROUP else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a number, or none for one step per channel"
        ) from None


def run(options: argparse.Namespace) -> int:
    """Compress, write, and print the size and the loss of quality."""
    from functools import partial

    from torch import nn

    from pfge.compression import Distillation, compress
    from pfge.ensemble import Ensemble
    from pfge.storage.ensemble_folder import prepare_for_overwrite

    out: Path = options.out
    if options.ensemble.resolve() == out.resolve():
        raise InvalidValueError(f"OUT and ENSEMBLE must be different folders, got {out} for both")
    target, settings = _target(options), _settings(options)
    place = out.resolve()  # the current folder, ".", has no name
    checkpoint = place.with_name(place.name + ".distil.checkpoint")
    if options.distil is not None and options.distil < 1:
        raise InvalidValueError(f"--distil must be at least 1 iteration, got {options.distil}")
    distillation = Distillation(iterations=options.distil or 1, checkpoint=checkpoint)
    prepare_for_overwrite(out)  # before any long work
    session = _open_session(options)
    if session is None:
        # Nothing predicts, so no model is needed. A partial has no name that could enter the manifest.
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
            "--files says what --budget counts, which is missing; add it, such as --budget 700kB"
        )
    if options.budget is not None:
        return Budget(options.budget, files=options.files)
    if options.max_kl is not None or options.max_nll_increase is not None:
        return MaxLoss(kl=options.max_kl, nll_increase=options.max_nll_increase)
    return Bits() if options.delta_bits is None else Bits(options.delta_bits)


def _settings(options: argparse.Namespace) -> "PackSettings | None":
    """Return how members are packed, if any of it is given; else it is chosen."""
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
    """Set up the experiment if its data is needed, or if it is known and helps to choose bits."""
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
