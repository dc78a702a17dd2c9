"""Find w0: the paper's SGD recipe, or the user's own checkpoint."""

from pathlib import Path

from torch import nn

from pfge.lab.bench import Bench, make_sgd
from pfge.lab.start_weights import load_start_weights
from pfge.lab.walk import walk
from pfge.schedules import pretraining_schedule
from pfge.storage import read_tensors, write_tensors
from pfge.trajectory import Trajectory
from pfge.weights import Weights, view_weights

W0 = "w0.safetensors"


def find_w0(bench: Bench, seed: int) -> Weights:
    """Return the start weights of a seed; those found once stay in the run folder."""
    path = bench.folder.of_seed(seed) / W0
    found = path.exists()
    bench.engine.wait_for_all()  # nobody writes before everybody has looked
    if not found:
        model = bench.build_seeded_model(seed)
        if bench.experiment.pretrain.weights:
            load_start_weights(model, Path(bench.experiment.pretrain.weights).expanduser())
        else:
            _train(bench, seed, model)
        bench.engine.first_does(lambda: write_tensors(path, view_weights(model)))
    return read_tensors(path)[0]


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
        checkpoint=bench.folder.of_seed(seed) / "pretrain.checkpoint",
        checkpoint_seconds=bench.experiment.engine.checkpoint_seconds,
        reporter=bench.reporter,
        name=f"seed {seed}: find w0",
    )
