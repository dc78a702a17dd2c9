"""Ensembles of adapters such as LoRA: members are saved as peft saves them, without the base model."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict
from torch import Tensor, nn

from pfge.ensemble import Ensemble
from pfge.errors import InvalidValueError
from pfge.forward import OwnedModel
from pfge.integrations.collecting import sampled_digest, warn_if_untested
from pfge.storage.ensemble_folder import (
    ADAPTERS,
    MANIFEST,
    FileEntry,
    LazyMembers,
    commit_manifest,
    parse_members,
    prepare_for_overwrite,
    read_manifest,
    require_format,
    verify_file,
)
from pfge.storage.files import (
    StorageError,
    measure_parts,
    only_writer,
    read_tensors,
    tensor_file,
    write_tensors,
    write_text,
)
from pfge.storage.record import EnsembleRecord
from pfge.tasks import Task
from pfge.weights import Weights, count_bytes, share, view_weights

TYPES = ("LORA",)
"""Types of adapters that can be saved and loaded: they need only their tensors and the fields below."""
HIGHEST_RANK = 4096
MOST_NAMES = 10_000
MOST_PATTERNS = 400
"""Most names that peft matches as regular expressions; the cache of the module `re` holds 512."""
_NAME = re.compile(r"[\w.^$-]{1,500}", re.ASCII)
"""A regular expression without repetitions and groups matches in linear time."""
_NAMES = f"names of modules, of letters, digits and _ . - ^ $, at most {MOST_NAMES:,}"


def read_config(config: Any) -> LoraConfig:
    """Return the config of an adapter, built from checked fields alone.

    Raises:
        ValueError: The type is not one of `TYPES`, or a field is unknown or has a value that is not allowed;
            the message names it.
    """
    if not isinstance(config, Mapping):
        raise InvalidValueError(f"the config of an adapter must be an object, got {_show(config)}")
    if (kind := config.get("peft_type")) not in TYPES:
        raise InvalidValueError(
            f"peft_type must be {' or '.join(TYPES)}, got {_show(kind)}; for other adapters use Ensemble.save"
        )
    checked: dict[str, Any] = {}
    for name, value in config.items():
        if name in _ALLOWED:
            rule, is_allowed = _ALLOWED[name]
            if not is_allowed(value):
                raise InvalidValueError(f"{name} of an adapter must be {rule}, got {_show(value)}")
            checked[name] = value
        elif name not in _IGNORED and not (name in _OFF and value in (_OFF[name], None)):
            known = "must be left as it is" if name in _OFF else "is not a known field"
            raise InvalidValueError(
                f"the field {_show(name)} of an adapter {known}, got {_show(value)}; for adapters that need "
                "it use Ensemble.save"
            )
    patterns = sum(len(_listed(checked.get(name))) for name in _PATTERNS)
    if patterns > MOST_PATTERNS:
        raise InvalidValueError(
            f"{', '.join(_PATTERNS)} of an adapter may have {MOST_PATTERNS} names together, got {patterns}"
        )
    return LoraConfig(**checked)


def _listed(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str) else value


def _show(value: Any) -> str:
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_names(value: Any) -> bool:
    if isinstance(value, str):
        return _is_name(value)
    return isinstance(value, list) and len(value) <= MOST_NAMES and all(map(_is_name, value))


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list) and _is_names(value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 10_000


def _is_counts(value: Any) -> bool:
    return _is_count(value) or (
        isinstance(value, list) and len(value) <= MOST_NAMES and all(map(_is_count, value))
    )


def _is_rank(value: Any) -> bool:
    return type(value) is int and 1 <= value <= HIGHEST_RANK


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30 and isfinite(value)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1


def _by_name(is_allowed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return isinstance(value, dict) and all(_is_name(k) and is_allowed(v) for k, v in value.items())

    return check


def _or_none(is_allowed: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_allowed(value)


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str | bool | None) and value in values


_TASKS = tuple(kind.value for kind in TaskType)
_STARTS = (True, False, "gaussian", "orthogonal", "olora", "pissa")
_RANK = f"a whole number from 1 to {HIGHEST_RANK}"
_ALLOWED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "task_type": (f"null or one of {', '.join(_TASKS)}", _one_of(None, *_TASKS)),
    "inference_mode": ("true or false", _is_bool),
    "r": (_RANK, _is_rank),
    "target_modules": (_NAMES, _or_none(_is_names)),
    "exclude_modules": (_NAMES, _or_none(_is_names)),
    "target_parameters": (_NAMES, _or_none(_is_list_of_names)),
    "modules_to_save": (_NAMES, _or_none(_is_list_of_names)),
    "lora_alpha": ("a finite number", _is_number),
    "lora_dropout": ("a number from 0 to 1", _is_share),
    "fan_in_fan_out": ("true or false", _is_bool),
    "bias": ("none, all or lora_only", _one_of("none", "all", "lora_only")),
    "use_rslora": ("true or false", _is_bool),
    "use_dora": ("true or false", _is_bool),
    "lora_bias": ("true or false", _is_bool),
    "ensure_weight_tying": ("true or false", _is_bool),
    "init_lora_weights": (f"one of {', '.join(map(str, _STARTS))}", _one_of(*_STARTS)),
    "layers_to_transform": ("whole numbers from 0", _or_none(_is_counts)),
    "layers_pattern": (_NAMES, _or_none(_is_names)),
    "rank_pattern": (f"for each name {_RANK}", _or_none(_by_name(_is_rank))),
    "alpha_pattern": ("for each name a finite number", _or_none(_by_name(_is_number))),
}
_PATTERNS = ("modules_to_save", "layers_pattern", "rank_pattern", "alpha_pattern")
_IGNORED = {"peft_type", "peft_version", "auto_mapping", "base_model_name_or_path", "revision"}
"""Fields of peft about the origin of an adapter, which are ignored because the user passes the base."""
_OFF: Mapping[str, Any] = {
    field.name: field.default if field.default is not MISSING else {}
    for field in fields(LoraConfig)
    if field.name not in _ALLOWED
}
"""Other fields of peft, which must have the value that turns them off."""


TESTED = ("0.21", "0.21")
VERSION = 1
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"  # as peft names them


@dataclass(frozen=True, kw_only=True)
class AdapterEntry(FileEntry):
    """The file of one adapter, in a folder of its own as peft needs it.

    Args:
        folder: Name of the folder.
        iteration: Iteration at which the member was collected; None if it belongs to no single one.
    """

    folder: str
    iteration: int | None


def save_adapters(ensemble: Ensemble, folder: str | Path) -> None:
    """Save an ensemble of a peft model as one adapter for each member; the base's weights are not saved.

    `PeftModel.from_pretrained(base, folder / "adapter-1-...")` of peft itself loads one member,
    `load_adapters` the ensemble.

    Args:
        ensemble: Its `build_model` returns the peft model, such as the trained one.
        folder: An ensemble that was there is replaced at once, at the end.

    Raises:
        ValueError: The model is not one of peft, or members differ in more than the adapter.
    """
    warn_if_untested("peft", TESTED)
    model, path = require_adapters(ensemble.build_model()), Path(folder)
    names = _names_by_key(model)
    config = _plain_config(model)
    prepare_for_overwrite(path)
    with only_writer(path):
        entries: list[AdapterEntry] = []
        unchanged: Weights = {}
        for number, (member, iteration) in enumerate(
            zip(ensemble.members, ensemble.iterations, strict=True), 1
        ):
            _require_only_adapter(member, model, names.values(), number, unchanged)
            adapter = {key: member[name] for key, name in names.items()}
            entries.append(_write(path, number, adapter, config, iteration))
        base = {"name": config["base_model_name_or_path"], "sha256": digest_of_base(model)}
        files = {"adapter_config": config, "members": [asdict(entry) for entry in entries]}
        manifest = ensemble.record.to_manifest(ADAPTERS, VERSION, {"base": base}, files)
        commit_manifest(path, manifest, [], {entry.folder for entry in entries})


def load_adapters(
    folder: str | Path,
    base: nn.Module,
    *,
    other_base: bool = False,
    task: Task | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> Ensemble:
    """Open a saved ensemble of adapters, checked whole; adapters are read from disk when needed.

    Args:
        folder: The ensemble folder.
        base: The model that the adapters were trained on, with its weights. It becomes part of the ensemble:
            adapters are put into it, like by peft's `get_peft_model`.
        other_base: Whether a base with other weights, such as those of another precision, is accepted.
        task: Your own task, if the ensemble was saved with one; None for the saved task.
        forward: Calls the module on a batch, as for `Ensemble`.

    Raises:
        StorageError: The folder is missing, damaged or foreign, or the base is another one.
    """
    warn_if_untested("peft", TESTED)
    path = Path(folder)
    manifest = read_manifest(path)
    require_format(path / MANIFEST, manifest, ADAPTERS, VERSION)
    entries = parse_members(path / MANIFEST, manifest, AdapterEntry)
    files = [verify_file(path / e.folder, e, f"adapter {number}") for number, e in enumerate(entries, 1)]
    iterations = [entry.iteration for entry in entries]
    record = EnsembleRecord.from_manifest(path / MANIFEST, manifest, iterations)
    record = record.with_task(path / MANIFEST, task)
    if isinstance(base, PeftModel):
        raise InvalidValueError(
            "load_adapters puts adapters into a base model, got one with adapters; pass model.unload()"
        )
    model = _with_adapter(base, path, manifest, other_base=other_base)
    names = _names_by_key(model)

    def read(index: int) -> Weights:
        adapter = read_tensors(files[index])[0]
        own = view_weights(model)
        shapes = {key: own[name].shape for key, name in names.items()}
        if {key: tensor.shape for key, tensor in adapter.items()} != shapes:
            raise StorageError(f"{files[index]} must hold the tensors of an adapter for this base")
        base = {name: share(tensor) for name, tensor in own.items()}
        return base | {names[key]: tensor for key, tensor in adapter.items()}

    own = view_weights(model)
    adapter_bytes = count_bytes({name: own[name] for name in names.values()})
    members = LazyMembers(len(entries), read, nbytes=lambda count: count * adapter_bytes)
    return Ensemble.from_record(members, OwnedModel(model), record, forward=forward)


def require_adapters(model: nn.Module) -> PeftModel:
    """Return a peft model with an adapter of a known type, or raise a ValueError."""
    if not isinstance(model, PeftModel):
        raise InvalidValueError(
            f"adapters need a peft model, got a {type(model).__name__}; let build_model return one, such "
            "as get_peft_model(base, config)"
        )
    kind = model.active_peft_config.peft_type.value
    if kind not in TYPES:
        raise InvalidValueError(
            f"adapters must be of type {' or '.join(TYPES)}, got {kind}; use Ensemble.save"
        )
    return model


def digest_of_base(model: PeftModel) -> str:
    """Return a SHA-256 of the base's names, types and shapes, and of numbers from each tensor."""
    replaced = {*_names_by_key(model).values()}
    # The original of a module that the adapter replaces may be a new head with random weights.
    return sampled_digest(
        (name, tensor)
        for name, tensor in view_weights(model).items()
        if name not in replaced and ".original_module." not in name
    )


def _with_adapter(base: nn.Module, path: Path, manifest: dict[str, Any], *, other_base: bool) -> PeftModel:
    """Return the base with an adapter to be loaded; a different base is refused and left as it was."""
    match manifest.get("base"):
        case {"name": str() | None as given, "sha256": str(digest)}:
            name = given or "a model without a name"
        case _:
            raise StorageError(f"{path / MANIFEST} must give the name and the sha256 of the adapters' base")
    try:
        config = read_config(manifest.get("adapter_config"))
    except ValueError as error:
        raise StorageError(f"{path / MANIFEST}: {error}") from None
    with torch.random.fork_rng():
        try:
            model = get_peft_model(base, config)
        except Exception as error:  # peft and the layers raise errors of many kinds
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise StorageError(
                f"{path} has adapters for {name}, which do not fit a {type(base).__name__}: {reason}"
            ) from error
    if not other_base and digest_of_base(model) != digest:
        model.unload()
        raise StorageError(
            f"{path} has adapters for {name}, and the base given is another model or has other weights; load "
            "the one they were trained on, or pass other_base=True if it is the same in another precision"
        )
    return model


def _names_by_key(model: PeftModel) -> dict[str, str]:
    """Return the model's name for each key of an adapter's file."""
    names = list(view_weights(model))
    numbers = {name: torch.tensor(number) for number, name in enumerate(names)}
    # Only a model with a resized vocabulary needs its embeddings; True would make peft ask the hub.
    found: dict[str, Tensor] = get_peft_model_state_dict(
        model, numbers, model.active_adapter, save_embedding_layers=False
    )
    return {key: names[int(number)] for key, number in found.items()}


def _plain_config(model: PeftModel) -> dict[str, Any]:
    config = model.active_peft_config.to_dict() | {"inference_mode": True}
    if any(isinstance(config[key], str) for key in ("target_modules", "exclude_modules")):
        # Regular expressions are replaced by the modules that they found, as only names are loaded.
        names = {*model.base_model.targeted_module_names}
        config |= {"target_modules": names, "exclude_modules": None}
    # Sets, which JSON does not know, have an order that changes from run to run.
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in sorted(config.items())}
    read_config(plain)  # what is saved can be loaded
    return plain


def _require_only_adapter(
    member: Weights, model: PeftModel, adapter: Collection[str], number: int, unchanged: Weights
) -> None:
    """Raise a ValueError where a member differs from the model in more than the adapter.

    Args:
        member: The member.
        model: The model.
        adapter: The names of the adapter's tensors.
        number: Number of the member, for the error.
        unchanged: Frozen tensors that were compared before, because members share them; new ones are added.
    """
    own = view_weights(model)
    if missing := sorted({*adapter} - member.keys()):
        raise InvalidValueError(
            f"member {number} must have the tensors of the model's adapter, lacks {missing[0]}"
        )
    for name in sorted(member.keys() - {*adapter}):
        if unchanged.get(name) is member[name]:
            continue
        if name not in own or not torch.equal(member[name].to(own[name].device), own[name]):
            raise InvalidValueError(
                f"only the adapter of a member is saved, but member {number} differs from the model also in "
                f"{name}; name its module in modules_to_save, keep BatchNorm in evaluation mode, or use "
                "Ensemble.save"
            )
        unchanged[name] = member[name]


def _write(
    path: Path, number: int, adapter: Weights, config: dict[str, Any], iteration: int | None
) -> AdapterEntry:
    metadata = {"format": "pt"}  # as peft writes it
    size, digest = measure_parts(tensor_file(adapter, metadata))
    folder = path / f"adapter-{number}-{digest[:8]}"
    folder.mkdir(exist_ok=True)
    write_tensors(folder / WEIGHTS, adapter, metadata)
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")  # peft's own file, without a key of ours
    return AdapterEntry(folder=folder.name, file=WEIGHTS, bytes=size, sha256=digest, iteration=iteration)
