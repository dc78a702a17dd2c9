"""Members as one predictor: their predictions are pooled by the task, and calibrated on request."""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from pfge.batch_norm import FrozenLayers, refresh_batch_norm, warn_of_kept, warn_of_stale
from pfge.calibration import UNSCALED, CalibrateBy, Temperatures
from pfge.collectors.base import Collector, first_member
from pfge.ensemble_module import EnsembleModule, Form
from pfge.errors import InvalidTypeError, InvalidValueError
from pfge.forward import (
    Forward,
    ModuleFactory,
    TargetsAt,
    arguments_of,
    call_model,
    move_batch,
    require_order_of_rows,
    require_rereadable,
    run_model,
    without_targets,
)
from pfge.metrics.scores import ExampleScores
from pfge.packed import read_ensemble
from pfge.prediction import (
    Accumulator,
    AnyAccumulator,
    Keep,
    MemberCalibration,
    MemberPool,
    Predictor,
    predict_in_chunks,
    predict_in_turn,
    require_pairs,
)
from pfge.storage.ensemble_folder import MANIFEST, as_members, describe_file, write_ensemble
from pfge.storage.record import NO_INPUT_SPEC, EnsembleRecord, InputSpec
from pfge.tasks import DEFAULT_TASK, MemberVariance, Task
from pfge.tasks.classification import Classification
from pfge.views import Views
from pfge.weights import (
    Weights,
    buffer_names,
    require_same_layout,
    view_weights,
)

CHUNK_BYTES = 1 << 25
"""Size of the batches, and of one member's predictions for them, that evaluating keeps in memory."""


class Ensemble:
    """Predicts with several members: their weights, and a function that builds the module for them.

    With logits z_k of each of K members, it predicts the mean of their probabilities:

        p = (1 / K) * sum over k of softmax(z_k)

    Whatever the number of members, one module is resident: each member is copied into it in turn.

    Args:
        members: The weights of each member: a list, or a sequence that reads them when they are needed.
        build_model: Returns a module of the members' architecture. If it returns a model in use, as
            `lambda: model` does, the model is copied and stays as it is. To notice that, the first use calls
            the function twice.
        task: Defines how outputs become predictions, and how these are pooled and calibrated. The default
            expects logits [N, C] and predicts probabilities.
        method: How the members were made, for the manifest.
        model: How the module is built, for the manifest; the name of `build_model` if None.
        iterations: The iteration of each member, for the manifest.
        forward: Calls the module on a batch other than a tensor, a dict or a pair, and returns the outputs
            that the task expects. Classifiers return logits; if yours returns probabilities, let `forward`
            return their logarithm, as softmax(log p) = p.
        temperatures: Temperatures of the members and of their mean, and the members' weights; see
            `calibrated`.
        input_spec: How to use the ensemble without its training data: class names, mean, std, input shape.
        views: Views of each image in which every member predicts it, for test-time augmentation; None for the
            image alone.

    Attributes:
        record: All attributes of the ensemble apart from its members and functions; `save` writes it.

    References:
        Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation using
        Deep Ensembles", NeurIPS 2017.

    Example:
        One member gives both classes the probability 1/2, the other one 3/4 and 1/4:

        >>> import math, torch, pfge
        >>> def make_model():
        ...     return torch.nn.Linear(1, 2, bias=False)
        >>> members = [{"weight": torch.tensor([[z], [0.0]])} for z in (0.0, math.log(3))]
        >>> ensemble = pfge.Ensemble(members, make_model)
        >>> ensemble.predict(torch.ones(1, 1))
        tensor([[0.6250, 0.3750]])
        >>> ensemble.save("my-ensemble")
        >>> pfge.Ensemble.load("my-ensemble", make_model).predict_members(torch.ones(1, 1))
        tensor([[[0.5000, 0.5000]],
        <BLANKLINE>
                [[0.7500, 0.2500]]])
    """

    def __init__(
        self,
        members: Sequence[Weights],
        build_model: Callable[[], nn.Module],
        *,
        task: Task = DEFAULT_TASK,
        method: str | None = None,
        model: str | None = None,
        iterations: Sequence[int | None] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        temperatures: Temperatures = UNSCALED,
        input_spec: InputSpec = NO_INPUT_SPEC,
        views: Views | None = None,
    ):
        _require_constructor(build_model)
        _require_weights(members)
        if isinstance(members, list | tuple):
            for number, member in enumerate(members[1:], 2):
                require_same_layout(members[0], member, "member 1", f"member {number}")
        self.members = members
        self.build_model = build_model
        self.record = EnsembleRecord(
            method=method,
            model=model or _name_of(build_model),
            iterations=(None,) * len(members) if iterations is None else tuple(iterations),
            temperatures=temperatures,
            task=task,
            input_spec=input_spec,
            views=views,
        )
        self.record.require_fit(len(members))
        self.device = torch.device("cpu")
        self.frozen_batch_norm: frozenset[str] = frozenset()
        self._statistics = _Statistics()
        self.forward = forward or call_model
        self._factory = ModuleFactory(build_model)
        self._module: nn.Module | None = None
        self._outputs_checked = False

    @classmethod
    def from_record(
        cls,
        members: Sequence[Weights],
        build_model: Callable[[], nn.Module],
        record: EnsembleRecord,
        *,
        forward: Callable[[nn.Module, Any], Any] | None = None,
    ) -> "Ensemble":
        """Return the ensemble of these members with the attributes in a record.

        Args:
            members: Weights of each member.
            build_model: Returns a module of the members' architecture, as for the constructor.
            record: Attributes, such as those of another ensemble.
            forward: Calls the module on a batch, as for the constructor.
        """
        ensemble = cls(members, build_model, forward=forward)
        record = replace(record, model=record.model or ensemble.model)
        record.require_fit(len(members))
        ensemble.record = record
        return ensemble

    @classmethod
    def from_collector(
        cls, collector: Collector, build_model: Callable[[], nn.Module], **options: Any
    ) -> "Ensemble":
        """Return the ensemble of a collector's members; it knows how and at which iterations they were made.

        Args:
            collector: With the members that it has so far.
            build_model: Returns a new module of the members' architecture.
            options: Arguments of the constructor, for example `model` or `forward`.

        Raises:
            ValueError: The collector has no members yet.

        Example:
            >>> import torch, pfge
            >>> def make_model():
            ...     return torch.nn.Linear(1, 2, bias=False)
            >>> collector = pfge.FGE(cycle=2)
            >>> collector.begin({"weight": torch.zeros(2, 1)})
            >>> for iteration in range(1, 5):
            ...     collector.observe(iteration, {"weight": torch.full((2, 1), 0.1 * iteration)})
            >>> pfge.Ensemble.from_collector(collector, make_model, model="tiny")
            Ensemble(<members: 2>, <tiny>, method='FGE(cycle=2, phase=0)', iterations=[2, 4])
        """
        unfinished, members = collector.pending_description(), collector.members()
        if not len(members):
            found = f"only {unfinished}" if unfinished else "collected nothing"
            first = first_member(collector)
            until = "longer" if first is None else f"up to iteration {first} at least"
            raise InvalidValueError(
                f"an ensemble needs a member, and {collector} has {found} yet; train {until}, with "
                "before_update() and after_update() around each optimizer.step()"
            )
        if unfinished:
            warnings.warn(
                f"{collector} has {unfinished}; they are in no member, and collector.mean_so_far() "
                "has their mean",
                stacklevel=2,
            )
        ensemble = cls(
            members,
            build_model,
            method=str(collector),
            iterations=collector.iterations,
            **options,
        )
        ensemble.frozen_batch_norm = collector.frozen_batch_norm
        ensemble._statistics = _Statistics(stale=collector.averages)
        return ensemble

    @property
    def task(self) -> Task:
        """Meaning of the module's outputs."""
        return self.record.known_task

    @property
    def method(self) -> str | None:
        """How the members were made."""
        return self.record.method

    @property
    def model(self) -> str | None:
        """How the module is built."""
        return self.record.model

    @property
    def iterations(self) -> list[int | None]:
        """Iteration of each member."""
        return list(self.record.iterations)

    @property
    def temperatures(self) -> Temperatures:
        """Calibration of the members and of their mean."""
        return self.record.temperatures

    @property
    def input_spec(self) -> InputSpec:
        """How to use the ensemble without its training data."""
        return self.record.input_spec

    @property
    def views(self) -> Views | None:
        """Views of each image in which every member predicts it."""
        return self.record.views

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        known = {
            "task": self.task if self.task != DEFAULT_TASK else None,
            "method": self.method,
            "iterations": self.iterations if any(self.iterations) else None,
            "temperatures": self.temperatures if self.temperatures != UNSCALED else None,
        }
        arguments = [f"<members: {len(self)}>", f"<{self.model or 'build_model'}>"]
        arguments += [f"{name}={value!r}" for name, value in known.items() if value is not None]
        arguments += [f"<views: {len(self.views)}>"] if self.views else []
        return f"Ensemble({', '.join(arguments)})"

    @property
    def nbytes(self) -> int:
        """Bytes of all members' weights as they are stored; shared tensors count once."""
        return as_members(self.members).nbytes

    @property
    def forward_in_views(self) -> Forward:
        """The function that calls the module to predict: `forward`, for every view if there are several."""
        return self._in_views(self.forward)

    def _in_views(self, forward: Forward) -> Forward:
        return forward if self.views is None else partial(self.views.call, forward)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the members: their names, types, shapes and numbers, in order; packed ones unpacked.

        Views are part of it, as members that see others predict otherwise.
        """
        files = [describe_file("member", weights).sha256 for weights in self.members]
        seen = [] if self.views is None else [repr(self.views)]
        return hashlib.sha256("".join(files + seen).encode()).hexdigest()

    def last(self, count: int) -> "Ensemble":
        """Return the ensemble of the last members. Drops the pooled temperature; calibrate again."""
        if not 1 <= count <= len(self):
            raise InvalidValueError(f"last() takes from 1 to all {len(self)} members, got {count}")
        return self.with_members(
            self.members[-count:],
            iterations=self.iterations[-count:],
            temperatures=self.temperatures.of_last(count),
        )

    def with_members(
        self,
        members: Sequence[Weights],
        *,
        iterations: Sequence[int | None] | None = None,
        temperatures: Temperatures = UNSCALED,
    ) -> "Ensemble":
        """Return an ensemble of other members with the same attributes, on the same device.

        Args:
            members: Weights of each member.
            iterations: Iteration of each member; this ensemble's if None.
            temperatures: Calibration of the new members. By default there is none, because members that
                predict differently need another one.
        """
        found = self.record.iterations if iterations is None else tuple(iterations)
        return self._copy(members, replace(self.record, iterations=found, temperatures=temperatures))

    def with_record(self, **changes: Any) -> "Ensemble":
        """Return the ensemble with some attributes changed.

        Args:
            changes: New values of fields of `EnsembleRecord`, by name.

        Example:
            >>> import torch, pfge
            >>> from pfge.storage.record import InputSpec
            >>> members = [{"weight": torch.ones(2, 4)}]
            >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Linear(4, 2, bias=False))
            >>> ensemble.with_record(input_spec=InputSpec(classes=("cat", "dog"))).input_spec.classes
            ('cat', 'dog')
        """
        return self._copy(self.members, replace(self.record, **changes))

    def _copy(self, members: Sequence[Weights], record: EnsembleRecord) -> "Ensemble":
        ensemble = Ensemble.from_record(members, self.build_model, record, forward=self.forward)
        ensemble.device = self.device
        ensemble._factory = self._factory
        ensemble.frozen_batch_norm = self.frozen_batch_norm
        ensemble._statistics = self._statistics
        return ensemble

    def to(self, device: torch.device | str) -> "Ensemble":
        """Return the same ensemble predicting on a device; batches are moved there."""
        moved = self.with_record()
        moved.device = torch.device(device)
        return moved

    def in_views(self, views: Views | None) -> "Ensemble":
        """Return the ensemble with other views of each image, or without views for None.

        Temperatures are left out, as they were fitted to what it predicted before: fit them again.
        """
        return self.with_record(views=views, temperatures=UNSCALED)

    def calibrated(
        self, batches: Iterable[Any], *, targets: TargetsAt = None, by: CalibrateBy = "pooled"
    ) -> "Ensemble":
        """Fit the calibration on held-out data and return a calibrated copy.

        For classes, the calibration is the temperature that minimizes the negative log-likelihood. It is
        saved with the ensemble and applied whenever the ensemble predicts. If no temperature is best, as when
        all examples are predicted right, it stays 1, with a warning. Of each mask or text, a few positions
        are used, so batches may differ in length.

        Args:
            batches: Inputs and targets, as for `evaluate`, that can be read again in the same order.
            targets: Where batches have their targets, as for `evaluate`.
            by: "pooled" fits one temperature for the mean of the members, "members" one for each member,
                "shared" one for all members and one for their mean (`fit_shared_temperature`), and "weights"
                one for the mean and the members' weights (`fit_pooling_weights`). The last two need one class
                for each example. They are kept only if they lower the NLL on examples left out of the fit;
                otherwise there is a warning, and only the mean has a temperature.
        """
        calibration = MemberCalibration(self.task, targets, by)
        members = self.uncalibrated().predict_each(batches, targets=targets, keep=calibration.keep)
        return self.with_members(self.members, temperatures=calibration.fit(members))

    def uncalibrated(self) -> "Ensemble":
        """Return the ensemble as it predicts without temperatures, whatever was fitted and saved."""
        return self.with_members(self.members)

    def with_fresh_batch_norm(
        self,
        inputs: Iterable[Any],
        *,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        across_processes: bool = False,
        on_member: Callable[[int], None] | None = None,
        frozen: FrozenLayers = "keep",
    ) -> "Ensemble":
        """Return the ensemble with each member's BatchNorm statistics recomputed over training inputs.

        An average of weights has statistics that no point of the run had, so an ensemble of a model
        with BatchNorm predicts well only after this. Only the statistics are new memory.

        Args:
            inputs: Training batches, which are read once for each member.
            forward: Calls the module on a batch; the ensemble's own if None.
            across_processes: Whether every process reads its own share of the batches; see
                `refresh_batch_norm`.
            on_member: Called with the number of members done.
            frozen: "keep" leaves BatchNorm layers alone that were in evaluation mode when collecting began,
                and warns; an ensemble has that from its collector, and it is not saved. "refresh" and
                names are as in `refresh_batch_norm`.
        """
        if frozen == "keep" and (frozen := self.frozen_batch_norm):
            warn_of_kept(len(frozen))
        require_rereadable(inputs, len(self))
        fresh: list[Weights] = []
        for number in self._numbers():
            module = self._module_with(number)
            refresh_batch_norm(
                module,
                inputs,
                forward=forward or self.forward,
                across_processes=across_processes,
                frozen=frozen,
            )
            live = view_weights(module)
            fresh.append({name: live[name].to("cpu", copy=True) for name in buffer_names(module)})
            if on_member is not None:
                on_member(len(fresh))
        ensemble = self.with_members(as_members(self.members).with_tensors(fresh))
        ensemble._statistics = _Statistics()
        return ensemble

    def predict_members(self, x: Any) -> Tensor:
        """Return each member's predictions for one batch: for classes its probabilities, [K, N, C]."""
        _require_one_batch(x, self.task)
        members = torch.stack(list(self.predict_each([x])))
        return members.to(self.task.result_type or members.dtype)

    def predict(self, x: Any) -> Tensor:
        """Return the pooled prediction for one batch: for classes the members' mean probabilities, [N, C]."""
        _require_one_batch(x, self.task)
        return self.predict_batches([x])

    def predict_variance(self, x: Any) -> Tensor:
        """Return the variance over members of each entry of their predictions for one batch.

        With predictions p_k and weights w_k of the members, and their mean p, the variance is the sum over k
        of w_k (p_k - p)^2, where all w_k are 1 / K unless weights were fitted. One member is resident at a
        time.

        Args:
            x: A batch, as for `predict`.

        Example:
            >>> import torch, pfge
            >>> members = [{"weight": torch.tensor([[z], [1.0]])} for z in (1.0, 3.0)]
            >>> linear = lambda: torch.nn.Linear(1, 2, bias=False)
            >>> ensemble = pfge.Ensemble(members, linear, task=pfge.tasks.Raw())
            >>> ensemble.predict(torch.ones(1, 1)), ensemble.predict_variance(torch.ones(1, 1))
            (tensor([[2., 1.]]), tensor([[1., 0.]]))
        """
        variance = MemberVariance()
        for number, member in enumerate(self.predict_each([x])):
            variance.add(member, self.temperatures.weight_of(number))
        return variance.values().to(self.task.result_type or member.dtype)

    def predict_batches(self, batches: Iterable[Any], *, targets: TargetsAt = None) -> Tensor:
        """Return the pooled prediction over a data set, reading it once for each member.

        Args:
            batches: Batches that can be read again in the same order.
            targets: Where batches have targets that must not reach the model, as for `evaluate`.
        """
        ((_, pool),) = self.pool(batches, targets=targets, chunk_bytes=None)
        return pool.result()

    def predict_each(
        self, batches: Iterable[Any], *, targets: TargetsAt = None, keep: Keep | None = None
    ) -> Iterator[Tensor]:
        """Yield each member's predictions over a data set, one member resident at a time.

        Args:
            batches: Batches that can be read again in the same order.
            targets: Where batches have their targets, as for `evaluate`.
            keep: Returns the part of a batch's predictions to keep, called as keep(predictions, batch, start)
                with the number of the batch's first example; all of them if None.
        """
        if keep is None:  # else `keep` sees which example a prediction belongs to
            require_order_of_rows(batches)
        return predict_in_turn(partial(self._predictor, targets=targets), self._numbers(), batches, keep)

    def evaluate(
        self, batches: Iterable[Any], *, targets: TargetsAt = None, chunk_bytes: int = CHUNK_BYTES
    ) -> ExampleScores:
        """Return the scores of the pooled prediction for each example; `task.summarize` gives the metrics.

        Batches are read once, and predictions are dropped as soon as they are scored. So memory grows with
        the data set by the scores alone.

        Args:
            batches: Pairs of inputs and a tensor of targets, or dicts with `labels`.
            targets: Where other batches have their targets: an index, a key, or a function of the batch. The
                model is called with all other entries; a `forward` of your own gets the whole batch. With
                `targets=2`, (x, mask, y) is scored against y, and the model is called with x and mask.
            chunk_bytes: Size of the batches and predictions in memory at a time; see `predict_chunks`.

        Raises:
            ValueError: A batch has three or more entries, and `targets` is None.

        Example:
            >>> import math, torch, pfge
            >>> members = [{"weight": torch.tensor([[z], [0.0]])} for z in (0.0, math.log(3))]
            >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Linear(1, 2, bias=False))
            >>> scores = ensemble.evaluate([(torch.ones(2, 1), torch.tensor([0, 1]))])
            >>> ensemble.task.summarize(scores)["accuracy"]
            0.5
        """
        scores: list[ExampleScores] = []
        checked = require_pairs(batches) if targets is None else batches
        for batch, pool in self.pool(checked, targets=targets, chunk_bytes=chunk_bytes):
            scores.append(self.task.score(pool.predictions, self.task.targets_of(batch, targets)))
            del batch, pool  # before the next chunk is read
        return type(scores[0]).cat(scores)

    @overload
    def pool(
        self,
        batches: Iterable[Any],
        *,
        targets: TargetsAt = None,
        into: None = None,
        chunk_bytes: int | None = CHUNK_BYTES,
    ) -> Iterator[tuple[Any, MemberPool]]: ...

    @overload
    def pool(
        self,
        batches: Iterable[Any],
        *,
        targets: TargetsAt = None,
        into: Callable[[Any], AnyAccumulator],
        chunk_bytes: int | None = CHUNK_BYTES,
    ) -> Iterator[tuple[Any, AnyAccumulator]]: ...

    def pool(
        self,
        batches: Iterable[Any],
        *,
        targets: TargetsAt = None,
        into: Callable[[Any], Accumulator] | None = None,
        chunk_bytes: int | None = CHUNK_BYTES,
    ) -> Iterator[tuple[Any, Accumulator]]:
        """Yield each batch and its pooled members; every pass over data that pools members is this one.

        A batch's accumulator gets the predictions of one member after another, each at its own temperature.
        By default it is a `MemberPool`, which weighs and calibrates them as `predict` does; yours may also
        score each member, or note how much they differ.

        Args:
            batches: Inputs, or inputs and targets. An iterator will do unless `chunk_bytes` is None.
            targets: Where batches have their targets, as for `evaluate`.
            into: Returns a new accumulator for a batch; it needs a method `add(predictions)`.
            chunk_bytes: Size of the batches and predictions in memory at a time; see `predict_chunks`. None
                treats the whole data set as one batch: it is read once for each member, and the only result
                is `batches` with one accumulator.

        Example:
            >>> import math, torch, pfge
            >>> members = [{"weight": torch.tensor([[z], [0.0]])} for z in (0.0, math.log(3))]
            >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Linear(1, 2, bias=False))
            >>> for batch, pool in ensemble.pool(torch.ones(3, 1).split(2)):
            ...     print(len(batch), pool.result()[0])
            2 tensor([0.6250, 0.3750])
            1 tensor([0.6250, 0.3750])
        """
        make = into or (lambda _: MemberPool(self.task, self.temperatures))
        if chunk_bytes is None:
            accumulator = make(batches)
            for predictions in self.predict_each(batches, targets=targets):
                accumulator.add(predictions)
            yield batches, accumulator
            return
        for chunk, members in self.predict_chunks(batches, targets=targets, chunk_bytes=chunk_bytes):
            accumulators = [make(batch) for batch in chunk]
            for member in members:
                for accumulator in accumulators:
                    accumulator.add(member.pop(0))  # nothing else holds on to predictions
            while chunk:
                yield chunk.pop(0), accumulators.pop(0)

    def predict_chunks(
        self, batches: Iterable[Any], *, targets: TargetsAt = None, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[list[Any], Iterator[list[Tensor]]]]:
        """Yield a few batches at a time, and for these each member's predictions, a tensor for each batch.

        All members are loaded for each chunk in turn, so batches are read only once. Batches of texts may
        differ in length. The members of a chunk must be read before the next chunk.

        Args:
            batches: Inputs, or inputs and targets; an iterator will do.
            targets: Where batches have their targets, as for `evaluate`.
            chunk_bytes: A chunk ends with the batch at which its batches and one member's predictions for
                them reach this size.
        """
        load = partial(self._predictor, targets=targets)
        return predict_in_chunks(load, self._numbers(), batches, chunk_bytes)

    def new_module(self) -> nn.Module:
        """Return a new module of the members' architecture, which shares nothing with other modules.

        It is on the ensemble's device, in evaluation mode, and does not require gradients.

        Example:
            >>> import torch, pfge
            >>> model = torch.nn.Linear(1, 2, bias=False)
            >>> ensemble = pfge.Ensemble([{"weight": torch.ones(2, 1)}], lambda: model)
            >>> pfge.load_weights(module := ensemble.new_module(), ensemble.members[0])
            >>> module is model, module.weight.tolist()
            (False, [[1.0], [1.0]])
        """
        return self._factory.new(self.device)

    def as_module(self, example: Any = None, *, form: Form | None = None) -> EnsembleModule:
        """Return the ensemble as one `nn.Module`, on its device, with all members in memory.

        The module predicts what `predict` does, and can be compiled, exported, moved and served as any other.
        Call it as you call the model, with positional or keyword inputs.

        Args:
            example: A batch, as for `predict`. With it, a loop over members and `torch.func.vmap` are both
                timed on the device, and the faster one is taken; `seconds` has both times.
            form: "loop" or "vmap" to choose without timing, or "packed" to keep packed members packed and to
                unpack one at a time in each call. A loop if None and no example is given.

        Example:
            >>> import math, torch, pfge
            >>> members = [{"weight": torch.tensor([[z], [0.0]])} for z in (0.0, math.log(3))]
            >>> ensemble = pfge.Ensemble(members, lambda: torch.nn.Linear(1, 2, bias=False))
            >>> ensemble.as_module()(torch.ones(1, 1))
            tensor([[0.6250, 0.3750]])
        """
        self._numbers()
        self._warn_of_stale_batch_norm()
        forward = self.forward_in_views
        module = EnsembleModule(
            self.new_module(),
            self.members,
            task=self.task,
            forward=forward,
            temperatures=self.temperatures,
            form=form or "loop",
        )
        module.to(self.device)
        if form is None and example is not None:
            batch = move_batch(example, self.device)
            module.choose_form(*(arguments_of(batch) if forward is call_model else ((batch,), {})))
        return module

    def save(self, folder: str | Path) -> None:
        """Write the ensemble to a folder; an ensemble that was there is replaced at once, at the end."""
        self._warn_of_stale_batch_norm()
        write_ensemble(Path(folder), self.members, self.record)

    def file_bytes(self) -> int:
        """Return the size of all files that `save` writes, without writing one."""
        return as_members(self.members).file_bytes(self.record)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        build_model: Callable[[], nn.Module],
        *,
        task: Task | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        in_memory: bool = False,
    ) -> "Ensemble":
        """Open a saved ensemble, packed or not, checked whole; members are read from disk when needed.

        The files are checked once, here. They must stay as they are while the ensemble is used: members are
        read or mapped from them later, and a file that is cut short meanwhile ends the process (SIGBUS).
        Saving another ensemble to the folder changes no file, but removes those that no longer count. Where
        files may change, `in_memory` copies all members: what was checked is then what predicts.

        Args:
            folder: Where it is.
            build_model: Returns a module of the members' architecture, as for the constructor.
            task: Your own task, if the ensemble was saved with one; None for the saved task.
            forward: Calls the module on a batch, as for the constructor.
            in_memory: Whether to copy all members into memory, packed ones in their packed form.

        Raises:
            StorageError: The folder is missing, damaged or foreign, or its task is not known here.
        """
        members, record = read_ensemble(Path(folder), in_memory=in_memory)
        record = record.with_task(Path(folder) / MANIFEST, task)
        return cls.from_record(members, build_model, record, forward=forward)

    def _numbers(self) -> range:
        """Return the number of each member, counted from 0, if there is any."""
        if not len(self):
            raise InvalidValueError(
                "an ensemble needs a member to predict, this one is empty; collect or load some"
            )
        return range(len(self))

    def _predictor(self, number: int, *, targets: TargetsAt = None) -> Predictor:
        """Put one member into the module and return what predicts a batch with it.

        Private, as it is right only until another member is put there. A cascade needs it: its later members
        predict some examples of each batch only.
        """
        self._warn_of_stale_batch_norm()
        module, temperature = self._module_with(number), self.temperatures.of_member(number)
        forward = self._in_views(without_targets(self.forward, targets))

        @torch.no_grad()
        def predict(x: Any) -> Tensor:
            outputs = run_model(module, x, forward)
            # Once, as it waits for the device.
            self._outputs_checked = self._outputs_checked or self.task.check_outputs(outputs)
            return self.task.calibrate(self.task.predictions(outputs), temperature)

        return predict

    def _warn_of_stale_batch_norm(self) -> None:
        """Warn, once, if members are averages whose BatchNorm statistics were never computed."""
        if self._statistics.stale and len(self):
            self._statistics.stale = False
            if any(name.endswith("running_mean") for name in self.members[0]):
                warn_of_stale(self._resident(), self.frozen_batch_norm)

    def _resident(self) -> nn.Module:
        if self._module is None:
            self._module = self._factory.resident(self.device)
        return self._module

    def _module_with(self, index: int) -> nn.Module:
        module = self._resident()
        as_members(self.members).load_into(module, index)
        return module


@dataclass
class _Statistics:
    """Whether BatchNorm statistics belong to other weights, until there was a warning.

    Ensembles that are made of one another share it, so there is one warning for all of them.
    """

    stale: bool = False


def _require_constructor(build_model: object) -> None:
    """Raise a TypeError unless this is a function that returns a module, and not a module."""
    if isinstance(build_model, nn.Module) or not callable(build_model):
        kind = type(build_model).__name__
        raise InvalidTypeError(
            f"build_model must be a function that returns a new module, got a {kind}; pass the function or "
            f"class that constructs it, for example lambda: {kind}(...)"
        )


def _require_weights(members: object) -> None:
    """Raise a TypeError if these are plainly no list of weights by name."""
    if isinstance(members, Mapping | str | Path | nn.Module):
        raise InvalidTypeError(
            f"members must be a list with the weights of each member, got one {type(members).__name__}; pass "
            "[model.state_dict()], or use Ensemble.load(folder)"
        )
    for member in members if isinstance(members, list | tuple) else ():
        if not isinstance(member, Mapping):
            raise InvalidTypeError(
                f"a member must be weights by name, got a {type(member).__name__}; pass what "
                "model.state_dict() returns"
            )


def _require_one_batch(x: object, task: Task) -> None:
    """Raise a TypeError if this is a list of two inputs, the second of which would be taken for targets."""
    match x:
        case [Tensor() as first, Tensor() as second] if isinstance(task, Classification):
            inputs = first.is_floating_point() and second.is_floating_point() and first.ndim > 1
            if inputs and first.shape == second.shape:  # targets are classes
                raise InvalidTypeError(
                    f"one batch is inputs, or inputs and classes, got two tensors {list(first.shape)} of "
                    f"{first.dtype}; pass a list of batches to predict_batches(), or the inputs alone"
                )


def _name_of(build_model: Callable[[], nn.Module]) -> str | None:
    module, name = getattr(build_model, "__module__", None), getattr(build_model, "__qualname__", None)
    return f"{module}:{name}" if module and name else None
