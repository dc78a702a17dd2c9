"""Find w0: the paper's SGD recipe, a model with trained weights, or the user's own checkpoint."""

from pathlib import Path
from typing import Any

from torch import nn

from pfge.lab.config.schema import ConfigError, Experiment
from pfge.lab.data.seeding import derive_seed
from pfge.lab.run.progress import Reporter
from pfge.lab.session import Bench, make_sgd, open_bench
from pfge.lab.training.import_weights import load_start_weights
from pfge.lab.training.resumable import walk
from pfge.schedules import pretraining_schedule
from pfge.storage.files import read_tensors, write_tensors
from pfge.trajectory import Trajectory
from pfge.weights import Weights, require_same_layout, view_weights

W0 = "w0.safetensors"
CHECKPOINT = "pretrain.checkpoint"


def pretrain(experiment: Experiment, path: Path, reporter: Reporter) -> list[dict[str, Any]]:
    """Find w0 for every seed in a run folder, where a comparison then has it, and measure it.

    Returns:
        For each seed its number, the file of w0, and the metrics on each part of the data.
    """
    with open_bench(experiment, path, reporter) as bench:
        return [_find_and_measure(bench, seed) for seed in experiment.seeds]


def find_w0(bench: Bench, seed: int, number: int = 1) -> Weights:
    """Return the start weights of a seed; those found once stay in the run folder.

    Args:
        bench: The experiment.
        seed: Which.
        number: Counts independent trainings of the same seed; all but the first are a deep ensemble's.
    """
    path = bench.folder.of_seed(seed) / (W0 if number == 1 else f"w0-{number}.safetensors")
    found = path.exists()
    bench.engine.wait_for_all()  # nobody writes before everybody has looked
    if not found:
        model = _make_w0(bench, seed, number)
        bench.engine.first_does(lambda: write_tensors(path, view_weights(model)))
    return read_tensors(path)[0]


def _find_and_measure(bench: Bench, seed: int) -> dict[str, Any]:
    ensemble = bench.make_ensemble([find_w0(bench, seed)])
    # What a run that was stopped would continue from has served its purpose.
    bench.engine.first_does(lambda: (bench.folder.of_seed(seed) / CHECKPOINT).unlink(missing_ok=True))
    measured = {
        part: bench.evaluate(ensemble, data, f"seed {seed}: w0 on {part}").growing[-1]
        for part, data in bench.splits.for_evaluation().items()
    }
    return {"seed": seed, "file": bench.folder.of_seed(seed) / W0, **measured}


def pretraining_iterations(bench: Bench, seed: int) -> int:
    """Return how many updates it takes to train w0."""
    return max(round(bench.experiment.pretrain.epochs * bench.batches(seed, "pretraining").per_epoch), 1)


def _make_w0(bench: Bench, seed: int, number: int) -> nn.Module:
    recipe = bench.experiment.pretrain
    if recipe.weights:
        model = bench.build_seeded_model(seed)
        load_start_weights(model, Path(recipe.weights).expanduser())
        return model
    own_seed = seed if number == 1 else derive_seed(seed, "deep ensemble", number)
    model = bench.build_seeded_model(own_seed, **recipe.options)
    if recipe.options:
        _check_that_members_can_start_there(bench, model)
    if recipe.epochs:
        checkpoint = CHECKPOINT if number == 1 else f"pretrain-{number}.checkpoint"
        name = "w0" if number == 1 else f"member {number} of DeepEnsemble"
        _train(bench, own_seed, model, bench.folder.of_seed(seed) / checkpoint, f"seed {seed}: find {name}")
    return model


def _check_that_members_can_start_there(bench: Bench, model: nn.Module) -> None:
    without = view_weights(bench.build_seeded_model(0))
    try:
        require_same_layout(without, view_weights(model), "the model", "w0")
    except ValueError as error:
        raise ConfigError(
            f"pretrain.options must give a model of the same weights as without them, but {error}; "
            "options that change its shape belong in model.options"
        ) from None


def _train(bench: Bench, seed: int, model: nn.Module, checkpoint: Path, name: str) -> None:
    recipe = bench.experiment.pretrain
    source = bench.batches(seed, "pretraining")
    iterations = pretraining_iterations(bench, seed)
    optimizer = make_sgd(model, rate=recipe.rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    walk(
        Trajectory(model, optimizer, pretraining_schedule(iterations, recipe.rate), []),
        source,
        bench.engine,
        iterations=iterations,
        seed=seed,
        checkpoint=checkpoint,
        checkpoint_seconds=bench.experiment.engine.checkpoint_seconds,
        reporter=bench.reporter,
        name=name,
        log=bench.open_log(name),
    )
