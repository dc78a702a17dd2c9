"""Collecting in a Hugging Face Trainer: `Trainer(..., callbacks=[CollectWeights(...)])`."""

import json
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from accelerate.state import AcceleratorState
from torch import nn
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from pfge.collectors.base import Collector
from pfge.errors import InvalidValueError
from pfge.integrations.accelerate import require_supported
from pfge.integrations.collecting import Collecting, checked, sampled_digest, warn_if_untested
from pfge.schedules import Schedule
from pfge.storage.checkpoint import load_checkpoint, save_checkpoint
from pfge.storage.files import read_bounded
from pfge.tasks import CausalLM, Task
from pfge.weights import unwrap

TESTED = ("5.17", "5.22")
FILE = "pfge.safetensors"
UNSHIFTED = {"XLMWithLMHeadModel", "XLNetLMHeadModel"}
"""Causal language models, by their mapping in transformers, whose loss takes labels as they are."""


class CollectWeights(Collecting, TrainerCallback):
    """Collects weights while `Trainer.train` runs; `ensemble()` is what was collected.

    For a causal language model, the ensemble has the task `CausalLM()`, which compares the prediction at
    each position with the next token, as the model's own loss does.

    Each of the trainer's checkpoints has its state as `pfge.safetensors`, and
    `train(resume_from_checkpoint=...)` continues with the same members.

    Args:
        schedule: The learning rate for each update, in place of the trainer's own; None to leave the
            rates to the trainer.
        collectors: One collector or several; see `Trajectory`.
        checkpoint: The folder that training is resumed from, if it does not lie in `output_dir`.
    """

    overrides_scheduler: ClassVar[bool] = True

    def __init__(
        self,
        schedule: Schedule | None,
        collectors: Sequence[Collector] | Collector,
        *,
        checkpoint: str | Path | None = None,
    ):
        warn_if_untested("transformers", TESTED)
        super().__init__(schedule, collectors)
        self.checkpoint = checkpoint

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Follow the optimizer, from the checkpoint if the trainer resumes from one."""
        require_supported(AcceleratorState().distributed_type)
        if state.is_hyper_param_search:
            raise InvalidValueError(
                "a CollectWeights follows one training, got a hyperparameter search, which runs many; call "
                "trainer.remove_callback(CollectWeights) before it, and add one for the training that follows"
            )
        if getattr(args, "enable_jit_checkpoint", False):
            warnings.warn(
                f"checkpoints of the trainer hold {FILE}, got enable_jit_checkpoint=True, whose own do not, "
                "so collecting begins anew where training resumes from one; resume from one of save_strategy",
                stacklevel=2,
            )
        self.detach()  # from a training that was interrupted
        if state.global_step:
            self._load(Path(self.checkpoint or _folder(args, state)), state, kwargs["model"])
        self.attach(kwargs["model"], kwargs["optimizer"])

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let the trainer log the rate that was used, and not that of its own scheduler."""
        if self.schedule is not None:
            kwargs["lr_scheduler"]._last_lr = [group["lr"] for group in kwargs["optimizer"].param_groups]

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the state beside the trainer's own, unless its checkpoints cannot be resumed from."""
        if not state.is_world_process_zero or args.save_only_model:
            return
        folder = _folder(args, state)
        if not folder.is_dir():
            warnings.warn(
                f"{FILE} belongs in the trainer's checkpoint, but {folder} is not a folder, so members are "
                "not saved; let the trainer write its checkpoints to output_dir",
                stacklevel=2,
            )
            return
        save_checkpoint(folder / FILE, self.state_dict() | {"trainer": _mark(state, kwargs["model"])})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop following."""
        self.detach()

    def constructor(self, model: nn.Module) -> Callable[[], nn.Module]:
        """Return a function that constructs the model from its config."""
        if hasattr(model, "peft_config"):
            raise InvalidValueError(
                f"the adapters of a {type(model).__name__} need the base that it was made from; pass "
                "ensemble(lambda: model), which puts members into a copy of the trained model"
            )
        config = deepcopy(getattr(model, "config", None))
        return checked(partial(type(model), config), "let its constructor take its config")

    def task_of(self, model: nn.Module) -> Task:
        """Return `CausalLM()` for a causal language model; logits [N, C] are assumed of others."""
        return CausalLM() if is_causal_lm(model) else super().task_of(model)

    def _load(self, folder: Path, state: TrainerState, model: nn.Module) -> None:
        if (folder / FILE).exists() and _log_history(folder) == state.log_history:
            collected = load_checkpoint(folder / FILE)
            # Before anything is logged all histories are equal. Files of earlier versions have no mark.
            mark = collected.pop("trainer", None)
            if mark is None or mark == _mark(state, model):
                self.load_state_dict(collected)
                return
        warnings.warn(
            f"{folder} has no {FILE} of the checkpoint that training resumes from, so collecting begins "
            f"at step {state.global_step}; pass checkpoint= if it lies elsewhere",
            stacklevel=3,
        )


def is_causal_lm(model: nn.Module) -> bool:
    """Return whether the loss of a model compares each position with the next label."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    base = getattr(model, "get_base_model", None)  # of adapters
    kinds = [*type(model).__mro__, *(type(base()).__mro__ if callable(base) else ())]
    names = {kind.__name__ for kind in kinds}
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()} - UNSHIFTED
    return bool(names & known) or any(name.endswith("ForCausalLM") for name in names)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".", f"checkpoint-{state.global_step}")


def _log_history(folder: Path) -> Any:
    file = folder / "trainer_state.json"
    return json.loads(read_bounded(file)).get("log_history") if file.exists() else None


def _mark(state: TrainerState, model: nn.Module) -> dict[str, Any]:
    """Return what tells a training's checkpoint from those of others: its step and its weights."""
    named = unwrap(model).named_parameters()
    # What peft replaces is in no checkpoint, and may be a new, random head.
    kept = ((name, parameter) for name, parameter in named if ".original_module." not in name)
    return {"step": state.global_step, "weights": sampled_digest(kept)}
