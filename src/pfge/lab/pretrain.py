"""Find w0: the paper's SGD recipe, a model with trained weights, or the user's own checkpoint."""

from pathlib import Path
from typing import Any

from torch import nn

from pfge.lab.bench import Bench, make_sgd, open_bench
from pfge.lab.config import ConfigError, Experiment
from pfge.lab.progress import Reporter
from pfge.lab.start_weights import load_start_weights
from pfge.lab.walk import walk
from pfge.schedules import pretraining_schedule
from pfge.storage import read_tensors, write_tensors
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


def find_w0(bench: Bench, seed: int) -> Weights:
    """Return the start weights of a seed; those found once stay in the run folder."""
    path = bench.folder.of_seed(seed) / W0
    found = path.exists()
    bench.engine.wait_for_all()  # nobody writes before everybody has looked
    if not found:
        model = _make_w0(bench, seed)
        bench.engine.first_does(lambda: write_tensors(path, view_weights(model)))
    return read_tensors(path)[0]


def _find_and_measure(bench: Bench, seed: int) -> dict[str, Any]:
    ensemble = bench.make_ensemble([find_w0(bench, seed)])
    # What a run that was stopped would continue from has served its purpose.
    bench.engine.first_does(lambda: (bench.folder.of_seed(seed) / CHECKPOINT).unlink(missing_ok=True))
    measured = {
        part: bench.evaluate(ensemble, data, f"seed {seed}: w0 on {part}")["pooled"]
        for part, data in bench.splits.for_evaluation().items()
    }
    return {"seed": seed, "file": bench.folder.of_seed(seed) / W0, **measured}


def _make_w0(bench: Bench, seed: int) -> nn.Module:
    recipe = bench.experiment.pretrain
    if recipe.weights:
        model = bench.build_seeded_model(seed)
        load_start_weights(model, Path(recipe.weights).expanduser())
        return model
    model = bench.build_seeded_model(seed, **recipe.options)
    if recipe.options:
        _check_that_members_can_start_there(bench, model)
    if recipe.epochs:
        _train(bench, seed, model)
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


def _train(bench: Bench, seed: int, model: nn.Module) -> None:
    recipe = bench.experiment.pretrain
    source = bench.batches(seed, "pretraining")
    iterations = max(round(recipe.epochs * source.per_epoch), 1)
    optimizer = make_sgd(model, rate=recipe.rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    walk(
        Trajectory(model, optimizer, pretraining_schedule(iterations, recipe.rate), []),
        source,
        bench.engine,
        iterations=iterations,
        seed=seed,
        checkpoint=bench.folder.of_seed(seed) / CHECKPOINT,
        checkpoint_seconds=bench.experiment.engine.checkpoint_seconds,
        reporter=bench.reporter,
        name=f"seed {seed}: find w0",
    )
