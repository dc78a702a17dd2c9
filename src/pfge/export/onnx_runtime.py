"""Open files in ONNX Runtime, and say in one line what it cannot run."""

import re
from collections.abc import Callable, Iterable, Mapping
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from pfge.export.ensemble_graph import Form
from pfge.export.example_inputs import ExampleInputs
from pfge.export.verified_file import ExportError

Answer = Callable[[ExampleInputs], Tensor]
ROUNDS = 5
_TOO_OLD = re.compile(r"Unsupported model IR version: .*|Current official support for domain .*")
_T = TypeVar("_T")


def open_in_runtime(file: Path) -> Answer:
    """Return what a file answers.

    Raises:
        ExportError: ONNX Runtime cannot read or run it, or is older than the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # fatal ones; errors are raised as well
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of kinds of its own, which it does not publish
        raise _refusal(onnxruntime.__version__, "read", error) from error

    def answer(inputs: ExampleInputs) -> Tensor:
        fed = {name: tensor.numpy() for name, tensor in inputs.named().items()}
        try:
            return torch.from_numpy(session.run(None, fed)[0])
        except Exception as error:
            raise _refusal(onnxruntime.__version__, "run", error) from error

    return answer


def _refusal(version: str, what: str, error: Exception) -> ExportError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if older := _TOO_OLD.search(reason):
        return ExportError(
            f"ONNX Runtime {version} is older than the file: {older[0].rstrip('.')}; "
            "update it with pip install --upgrade onnxruntime"
        )
    return ExportError(
        f"the model cannot be written as ONNX that ONNX Runtime can {what}: {reason}; use another form or "
        f"the torch format, or update ONNX Runtime, which has version {version}"
    )


def possible(forms: Iterable[Form], act: Callable[[Form], _T]) -> dict[Form, _T]:
    """Return what becomes of each form, without those that are refused.

    Raises:
        ExportError: All of them are; the first one's reason.
    """
    made: dict[Form, _T] = {}
    refusals: list[ExportError] = []
    for form in forms:
        try:
            made[form] = act(form)
        except ExportError as error:
            refusals.append(error)
    if not made:
        raise refusals[0]
    return made


def measure_forms(answers: Mapping[Form, Answer], inputs: ExampleInputs) -> dict[Form, float]:
    """Return the least seconds of each form; they take turns, so that a change of speed affects both."""
    seconds: dict[Form, float] = dict.fromkeys(answers, inf)
    for _ in range(ROUNDS):
        for form, answer in answers.items():
            start = perf_counter()
            answer(inputs)
            seconds[form] = min(seconds[form], perf_counter() - start)
    return seconds
