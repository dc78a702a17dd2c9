"""Recompute BatchNorm statistics for the weights that a model has now."""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from pfge.errors import InvalidValueError
from pfge.forward import keep_modes, run_model
from pfge.weights import canonical_name, unwrap


@contextmanager
def read_aside(inputs: Iterable[Any]) -> Iterator[None]:
    """Let inputs be read in the context as if they were not, for a training loop that reads them as well."""
    with _keep_order(inputs), _beside_other_readers(inputs):
        yield


@contextmanager
def _keep_order(inputs: Iterable[Any]) -> Iterator[None]:
    """Let a `DataLoader` with a generator of its own shuffle its next epochs as if it had not been read."""
    held = (
        (inputs.generator, getattr(inputs.sampler, "generator", None))
        if isinstance(inputs, DataLoader)
        else ()
    )
    states = [(generator, generator.get_state()) for generator in held if generator is not None]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


@contextmanager
def _beside_other_readers(inputs: Iterable[Any]) -> Iterator[None]:
    """Give a `DataLoader` other workers for a while if its persistent ones may be in the midst of an epoch.

    Such a loader has a single iterator. Reading it here would start it again, and the epoch of a training
    loop that is reading it would end with this pass.
    """
    iterator = vars(inputs).get("_iterator") if isinstance(inputs, DataLoader) else None
    # Empty after the last batch. A loop that was left early has some as well, and costs the start of workers.
    if iterator is None or not getattr(iterator, "_task_info", True):
        yield
        return
    loader = cast(DataLoader[Any], inputs)
    loader._iterator = None
    try:
        yield
    finally:
        loader._iterator = iterator  # the other one ends its workers when it is forgotten


Batch = TypeVar("Batch")

FrozenLayers = Literal["keep", "refresh"] | Collection[str]
"""What happens to BatchNorm layers that were frozen, or the names of those that keep their statistics."""


def refresh_batch_norm(
    model: nn.Module,
    inputs: Iterable[Batch],
    *,
    forward: Callable[[nn.Module, Batch], Any] | None = None,
    layer_by_layer: bool = False,
    across_processes: bool = False,
    frozen: FrozenLayers = "keep",
) -> None:
    """Set every BatchNorm layer's statistics to those of all the inputs together.

    Averaged weights need this: the statistics that a model collected while it trained belong to other
    weights. Each layer's mean and variance are those of all values that reached it, whatever the sizes of the
    batches: with n_k values of mean m_k and sum of squared deviations q_k in batch k, and n, m, q so far,

        q = q + q_k + (m_k - m)^2 * n * n_k / (n + n_k),    m = m + (m_k - m) * n_k / (n + n_k)

    In the usual single pass a layer normalizes by its batch, as in training, so what reaches
    the layers behind it does depend on the batches; `layer_by_layer` removes that too, at the price of
    a pass for each layer. Nothing else changes: dropout is off, and modes, the random state and,
    if anything raises, the old statistics come back.

    Args:
        model: The model; one without BatchNorm is left alone and no data is read.
        inputs: Tensors, or pairs whose first entry is the input, or dicts of keyword arguments. A
            `DataLoader` may be one that a training loop is reading.
        forward: Calls the model on anything else, such as batches of three or more entries.
        layer_by_layer: Settle one layer after another, in the order in which data reaches them;
            `inputs` is then read once more for each.
        across_processes: Whether every process of torch.distributed calls this with a part of the
            inputs, to get the statistics of all of them.
        frozen: "keep" leaves layers alone that are in evaluation mode while the model is in training mode, as
            layers are that were frozen for training, and warns; "refresh" computes theirs too; names, as
            in `named_modules`, are those of the layers to leave alone.

    Raises:
        ValueError: No data reached a layer, a batch has one value for each channel, or a name in `frozen`
            is not that of a BatchNorm layer.

    References:
        Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018.
        Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
        Stanford 1979.

    Example:
        The values 1, 3, 5 and 7 have the mean 4 and the variance (9 + 1 + 1 + 9) / 3:

        >>> import torch, pfge
        >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 2))
        >>> batches = [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])]
        >>> pfge.refresh_batch_norm(model, batches)
        >>> model[0].running_mean, model[0].running_var
        (tensor([4.]), tensor([6.6667]))
    """
    module = unwrap(model)
    named = _tracking_layers(module)
    kept = _kept_layers(module, named, frozen)
    if kept and frozen == "keep":
        warn_of_kept(len(kept))
    layers = [layer for name, layer in named.items() if name not in kept]
    if not layers:
        return

    def run(module: nn.Module, batch: Batch) -> Any:
        return run_model(module, batch, forward)

    before = [{name: tensor.clone() for name, tensor in layer.named_buffers()} for layer in layers]
    with (
        keep_modes(module),
        torch.random.fork_rng(),
        torch.no_grad(),
        read_aside(inputs),
    ):
        try:
            module.eval()
            for group in _in_order(module, layers, inputs, run) if layer_by_layer else [layers]:
                _settle(module, group, inputs, run, across_processes)
        except BaseException:
            for layer, old in zip(layers, before, strict=True):
                for name, tensor in layer.named_buffers():
                    tensor.copy_(old[name])
            raise


def frozen_batch_norm(model: nn.Module) -> frozenset[str]:
    """Return the names of BatchNorm layers in evaluation mode, if the model itself is in training mode."""
    module = unwrap(model)
    if not module.training:
        return frozenset()
    return frozenset(name for name, layer in _tracking_layers(module).items() if not layer.training)


def warn_of_kept(count: int) -> None:
    """Say how many BatchNorm layers are not refreshed, and how they would be."""
    kept = "layer was frozen in evaluation mode and keeps its" if count == 1 else ""
    warnings.warn(
        f"{count} BatchNorm {kept or 'layers were frozen in evaluation mode and keep their'} statistics; "
        'pass frozen="refresh" to compute theirs too',
        stacklevel=3,
    )


def warn_of_stale(module: nn.Module, frozen: Collection[str]) -> None:
    """Warn of BatchNorm layers whose statistics belong to other weights, but for those that were frozen."""
    if count := len(_tracking_layers(unwrap(module)).keys() - frozen):
        layers = "layer has" if count == 1 else "layers have"
        warnings.warn(
            f"members are averages of weights, and {count} BatchNorm {layers} statistics of other weights; "
            "call ensemble.with_fresh_batch_norm(train_loader) first",
            stacklevel=4,
        )


def _tracking_layers(module: nn.Module) -> dict[str, _BatchNorm]:
    return {
        canonical_name(name): layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and _has_statistics(layer)
    }


def _has_statistics(layer: _BatchNorm) -> bool:
    statistics = (layer.running_mean, layer.running_var)  # which may have been removed
    return layer.track_running_stats and all(tensor is not None for tensor in statistics)


def _kept_layers(module: nn.Module, named: Collection[str], frozen: FrozenLayers) -> Collection[str]:
    if frozen == "refresh":
        return ()
    if frozen == "keep":
        return frozen_batch_norm(module)
    if isinstance(frozen, str) or (unknown := sorted(set(frozen) - set(named))):
        raise InvalidValueError(
            f"frozen must be 'keep', 'refresh' or names of BatchNorm layers, got "
            f"{frozen if isinstance(frozen, str) else unknown!r}; the names are those of named_modules()"
        )
    return frozen


class _Moments:
    """The exact mean and variance of all batches so far (Chan, Golub and LeVeque's merging rule)."""

    def __init__(self, layer: _BatchNorm):
        self.layer = layer
        self.batches = 0
        self.count = 0
        # Sums over a whole data set lose digits in float32; MPS has nothing wider.
        like = cast(Tensor, layer.running_mean)
        wide = torch.float32 if like.device.type == "mps" else torch.float64
        self.mean = torch.zeros_like(like, dtype=wide)
        self.squares = torch.zeros_like(self.mean)

    def before_forward(self, layer: nn.Module, args: tuple[Tensor, ...]) -> None:  # noqa: ARG002
        if args[0].numel() == args[0].shape[1]:
            raise InvalidValueError(
                f"BatchNorm needs two values or more for each channel, got an input of shape "
                f"{list(args[0].shape)}; use batches of 2 examples or more"
            )
        # The layer adds 0 times what it had, which is NaN if that is NaN or infinite.
        cast(Tensor, self.layer.running_mean).zero_()
        cast(Tensor, self.layer.running_var).fill_(1)

    def after_forward(self, layer: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:  # noqa: ARG002
        """Merge this batch, whose statistics the layer just wrote, as its momentum is 1."""
        count = args[0].numel() // args[0].shape[1]
        mean = cast(Tensor, self.layer.running_mean).to(self.mean.dtype)
        variance = cast(Tensor, self.layer.running_var).to(self.mean.dtype)
        self.merge(1, count, mean, variance * (count - 1))

    def merge(self, batches: int, count: int, mean: Tensor, squares: Tensor) -> None:
        """Count other values, given by their number, mean and sum of squared deviations from it."""
        if not count:
            return
        total = self.count + count
        shift = mean - self.mean
        self.mean += shift * (count / total)
        self.squares += squares + shift.square() * (self.count * count / total)
        self.count = total
        self.batches += batches

    def merge_processes(self) -> None:
        """Count what all processes counted, in the order of their ranks."""
        numbers = self.mean.new_tensor([self.batches, self.count])
        mine = torch.cat([numbers, self.mean, self.squares])
        everyone = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
        distributed.all_gather(everyone, mine)
        self.batches = self.count = 0
        self.mean.zero_()
        self.squares.zero_()
        for theirs in everyone:
            mean, squares = theirs[2:].chunk(2)
            self.merge(int(theirs[0]), int(theirs[1]), mean, squares)

    def write(self) -> None:
        cast(Tensor, self.layer.running_mean).copy_(self.mean)
        cast(Tensor, self.layer.running_var).copy_(self.squares / (self.count - 1))
        if self.layer.num_batches_tracked is not None:
            self.layer.num_batches_tracked.fill_(self.batches)


def _settle(
    module: nn.Module,
    layers: list[_BatchNorm],
    inputs: Iterable[Batch],
    run: Callable[[nn.Module, Batch], Any],
    across_processes: bool,
) -> None:
    moments = [_Moments(layer) for layer in layers]
    momenta = [layer.momentum for layer in layers]
    with ExitStack() as hooks:
        for layer, moment in zip(layers, moments, strict=True):
            layer.train()
            layer.momentum = 1.0
            hooks.enter_context(layer.register_forward_pre_hook(moment.before_forward))
            hooks.enter_context(layer.register_forward_hook(moment.after_forward))
        try:
            for batch in inputs:
                run(module, batch)
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum
                layer.eval()
    if across_processes:
        for moment in moments:
            moment.merge_processes()
    reached = [moment for moment in moments if moment.count]
    if not reached:
        raise InvalidValueError(
            "refreshing BatchNorm needs data that reaches its layers, got none; "
            "pass at least one batch, as a list or DataLoader that can be read again"
        )
    for moment in reached:
        moment.write()


def _in_order(
    module: nn.Module,
    layers: list[_BatchNorm],
    inputs: Iterable[Batch],
    run: Callable[[nn.Module, Batch], Any],
) -> list[list[_BatchNorm]]:
    """Return each layer alone, in the order in which the first batch reaches them."""
    order: dict[_BatchNorm, None] = {}
    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(lambda layer, _: order.setdefault(layer)))
        for batch in inputs:
            run(module, batch)
            break
    return [[layer] for layer in order]
