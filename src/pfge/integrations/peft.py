"""Ensembles of adapters, such as LoRA's: each member is saved as peft saves it, and the base is not saved."""

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from torch import Tensor, nn

from pfge.ensemble import Ensemble
from pfge.frozen import share
from pfge.integrations.collecting import sampled_digest, warn_if_untested
from pfge.storage.atomic_files import only_writer
from pfge.storage.files import StorageError, measure_parts, read_tensors, write_tensors, write_text
from pfge.storage.lazy_members import LazyMembers
from pfge.storage.manifest import (
    ADAPTERS,
    MANIFEST,
    FileEntry,
    commit_manifest,
    is_inside,
    prepare_for_overwrite,
    read_manifest,
    read_temperatures,
    read_views,
    require_format,
    task_entries,
    temperature_entries,
    usage_entries,
    verify_file,
    views_entries,
)
from pfge.storage.tensor_bytes import tensor_file
from pfge.storage.usage import Usage
from pfge.tasks import Task
from pfge.tasks.manifest import task_from_manifest, task_to_manifest
from pfge.weights import Weights, count_bytes, view_weights

TESTED = ("0.21", "0.21")
VERSION = 1
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"  # as peft names them


@dataclass(frozen=True, kw_only=True)
class Entry(FileEntry):
    """One adapter in the manifest: its file, in a folder of its own as peft wants it."""

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
        entries: list[Entry] = []
        unchanged: Weights = {}
        for number, (member, iteration) in enumerate(
            zip(ensemble.members, ensemble.iterations, strict=True), 1
        ):
            _require_only_adapter(member, model, names.values(), number, unchanged)
            adapter = {key: member[name] for key, name in names.items()}
            entries.append(_write(path, number, adapter, config, iteration))
        manifest = {
            "format": ADAPTERS,
            "version": VERSION,
            "method": ensemble.method,
            "model": ensemble.model,
            "base": {"name": config["base_model_name_or_path"], "sha256": digest_of_base(model)},
            **temperature_entries(ensemble.temperatures),
            **task_entries(task_to_manifest(ensemble.task)),
            **usage_entries(ensemble.usage),
            **views_entries(ensemble.views),
            "adapter_config": config,
            "members": [asdict(entry) for entry in entries],
        }
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
        folder: Where it is.
        base: The model that the adapters were trained on, with its weights. It becomes part of the ensemble:
            adapters are put into it, as by peft's `get_peft_model`.
        other_base: Whether a base with other weights, such as those of another precision, is accepted.
        task: The task, if it is one of your own; the one that was saved if None.
        forward: As of an ensemble.

    Raises:
        StorageError: The folder is missing, damaged or foreign, or the base is another one.
    """
    warn_if_untested("peft", TESTED)
    path = Path(folder)
    manifest = read_manifest(path)
    require_format(path / MANIFEST, manifest, ADAPTERS, VERSION)
    entries = [_parse_entry(path / MANIFEST, member) for member in manifest.get("members", [])]
    files = [verify_file(path / e.folder, e, f"adapter {number}") for number, e in enumerate(entries, 1)]
    temperatures = read_temperatures(path / MANIFEST, manifest, len(entries))
    usage = Usage.from_manifest(path / MANIFEST, manifest.get("usage"))
    views = read_views(path / MANIFEST, manifest)
    try:
        task = task_from_manifest(manifest.get("task")) if task is None else task
    except ValueError as error:
        raise StorageError(f"{path / MANIFEST}: {error}") from None
    if isinstance(base, PeftModel):
        raise ValueError(
            "load_adapters puts adapters into a base model, got one with adapters; pass model.unload()"
        )
    model = _with_adapter(base, path, manifest, other_base=other_base)
    names = _names_by_key(model)

    def read(index: int) -> Weights:
        adapter = read_tensors(files[index])[0]
        if adapter.keys() != names.keys():
            raise StorageError(f"{files[index]} must hold the tensors of an adapter for this base")
        base = {name: share(tensor) for name, tensor in view_weights(model).items()}
        return base | {names[key]: tensor for key, tensor in adapter.items()}

    own = view_weights(model)
    adapter_bytes = count_bytes({name: own[name] for name in names.values()})
    return Ensemble(
        LazyMembers(len(entries), read, nbytes=lambda count: count * adapter_bytes),
        lambda: model,
        task=task,
        method=manifest.get("method"),
        model=manifest.get("model"),
        iterations=[entry.iteration for entry in entries],
        forward=forward,
        temperatures=temperatures,
        usage=usage,
        views=views,
    )


def require_adapters(model: nn.Module) -> PeftModel:
    """Return the model if it is one of peft whose adapter is made of tensors; a ValueError otherwise."""
    if not isinstance(model, PeftModel):
        raise ValueError(
            f"adapters are those of a peft model, got a {type(model).__name__}; let build_model return "
            "one, as from get_peft_model(base, config)"
        )
    if model.active_peft_config.is_prompt_learning:
        raise ValueError(
            f"adapters are tensors of a model's layers, got {model.active_peft_config.peft_type.value}; "
            "use Ensemble.save"
        )
    return model


def digest_of_base(model: PeftModel) -> str:
    """Return a SHA-256 of the base's names, types and shapes, and of numbers from each tensor."""
    replaced = {*_names_by_key(model).values()}
    # The original of a module that the adapter replaces may be a new, random head.
    return sampled_digest(
        (name, tensor)
        for name, tensor in view_weights(model).items()
        if name not in replaced and ".original_module." not in name
    )


def _with_adapter(base: nn.Module, path: Path, manifest: dict[str, Any], *, other_base: bool) -> PeftModel:
    """Return the base with a place for an adapter; where it is another base, it is left as it was."""
    config = manifest.get("adapter_config")
    if not isinstance(config, dict) or config.get("megatron_config") is not None:
        raise StorageError(f"{path / MANIFEST} must give the adapter's config, and no module to import")
    expected = manifest.get("base") or {}
    name = expected.get("name") or "a model without a name"
    with torch.random.fork_rng():
        try:
            model = get_peft_model(base, PeftConfig.from_peft_type(**config))
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{path} has adapters for {name}, which do not fit a {type(base).__name__}: {error}"
            ) from error
    if not other_base and digest_of_base(model) != expected.get("sha256"):
        model.unload()
        raise StorageError(
            f"{path} has adapters for {name}, and the base given is another model or has other weights; load "
            "that which they were trained on, or pass other_base=True if it is the same in another precision"
        )
    return model


def _names_by_key(model: PeftModel) -> dict[str, str]:
    """Return the model's name for each key of an adapter's file."""
    names = list(view_weights(model))
    numbers = {name: torch.tensor(number) for number, name in enumerate(names)}
    # False: only a model with a resized vocabulary needs its embeddings, and peft would ask the hub.
    found: dict[str, Tensor] = get_peft_model_state_dict(
        model, numbers, model.active_adapter, save_embedding_layers=False
    )
    return {key: names[int(number)] for key, number in found.items()}


def _plain_config(model: PeftModel) -> dict[str, Any]:
    config = model.active_peft_config.to_dict() | {"inference_mode": True}
    # Sets, which JSON does not know, have an order that changes from run to run.
    return {key: sorted(value) if isinstance(value, set) else value for key, value in sorted(config.items())}


def _require_only_adapter(
    member: Weights, model: PeftModel, adapter: Collection[str], number: int, unchanged: Weights
) -> None:
    """Raise a ValueError where a member differs from the model in more than the adapter.

    Args:
        member: The member.
        model: The model.
        adapter: The names of the adapter's tensors.
        number: The member's, for the error.
        unchanged: Tensors that were compared before, as members share frozen ones; it is added to.
    """
    own = view_weights(model)
    if missing := sorted({*adapter} - member.keys()):
        raise ValueError(f"member {number} must have the tensors of the model's adapter, lacks {missing[0]}")
    for name in sorted(member.keys() - {*adapter}):
        if unchanged.get(name) is member[name]:
            continue
        if name not in own or not torch.equal(member[name].to(own[name].device), own[name]):
            raise ValueError(
                f"an adapter is all that is saved of a member, but member {number} differs from the model in "
                f"{name}, too; name its module in modules_to_save, keep BatchNorm in evaluation mode, or use "
                "Ensemble.save"
            )
        unchanged[name] = member[name]


def _write(path: Path, number: int, adapter: Weights, config: dict[str, Any], iteration: int | None) -> Entry:
    metadata = {"format": "pt"}  # as peft writes it
    size, digest = measure_parts(tensor_file(adapter, metadata))
    folder = path / f"adapter-{number}-{digest[:8]}"
    folder.mkdir(exist_ok=True)
    write_tensors(folder / WEIGHTS, adapter, metadata)
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")  # peft's own file, without a key of ours
    return Entry(folder=folder.name, file=WEIGHTS, bytes=size, sha256=digest, iteration=iteration)


def _parse_entry(path: Path, member: Any) -> Entry:
    match member:
        case {
            "folder": str(folder),
            "file": str(file),
            "iteration": int() | None as iteration,
            "bytes": int(size),
            "sha256": str(digest),
        }:
            if is_inside(folder) and is_inside(file):
                return Entry(folder=folder, file=file, iteration=iteration, bytes=size, sha256=digest)
    raise StorageError(
        f"{path} must give each adapter's folder, file, iteration, bytes and sha256, found {member!r}"
    )
