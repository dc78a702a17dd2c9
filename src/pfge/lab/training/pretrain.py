"""Make w0: by the paper's SGD recipe, from a model with trained weights, or from the user's checkpoint."""

from pathlib import Path

from torch import nn

from pfge.lab.config.schema import ConfigError, Experiment
from pfge.lab.data.seeding import derive_seed
from pfge.lab.evaluation.evaluate import evaluate_on
from pfge.lab.run.kept_weights import keep_weights, require_same_weights
from pfge.lab.run.progress import Reporter
from pfge.lab.run.results import StartWeights
from pfge.lab.session import Session, open_session
from pfge.lab.training.import_weights import load_start_weights
from pfge.lab.training.optimizers import make_optimizer
from pfge.lab.training.resumable import Training, train_resumable
from pfge.schedules import pretraining_schedule
from pfge.storage.files import StorageError, checksum
from pfge.storage.recorded_tensors import read_recorded, write_recorded
from pfge.trajectory import Trajectory
from pfge.weights import Weights, require_same_layout, view_weights

CHECKPOINT = "pretrain.checkpoint"


def pretrain(experiment: Experiment, path: Path, reporter: Reporter) -> list[StartWeights]:
    """Make w0 for every seed in a run folder, for a later comparison, and measure it."""
    with open_session(experiment, path, reporter) as session:
        return [_find_and_measure(session, seed) for seed in experiment.seeds]


def find_w0(session: Session, seed: int, number: int = 1) -> Weights:
    """Return the start weights of a seed; they are made once and stay in the run folder.

    Args:
        session: The experiment.
        seed: Which.
        number: Counts independent trainings of the same seed; all but the first are a deep ensemble's.
    """
    session.folder.of_seed(seed)
    path = session.folder.w0(seed, number)
    found = path.exists()
    session.engine.wait_for_all()  # no process writes before all have checked
    if not found:
        model = _make_w0(session, seed, number)
        session.engine.first_does(lambda: write_recorded(path, view_weights(model)))
    return read_recorded(path)


def read_w0(session: Session, seed: int) -> Weights:
    """Return the start weights of a seed that are in the run folder; none are trained or imported.

    Raises:
        StorageError: It has none, or they are not as they were written.
    """
    path = session.folder.w0(seed)
    if not path.exists():
        raise StorageError(
            f"{session.folder.path} has no w0 for seed {seed} yet; "
            f"run pfge compare --out {session.folder.path} to its end"
        )
    return read_recorded(path)


def _find_and_measure(session: Session, seed: int) -> StartWeights:
    ensemble = session.make_ensemble([find_w0(session, seed)])
    # The checkpoint of an interrupted training is no longer needed.
    session.engine.first_does(lambda: (session.folder.of_seed(seed) / CHECKPOINT).unlink(missing_ok=True))
    measured = {
        part: evaluate_on(session, ensemble, data, f"seed {seed}: w0 on {part}").growing[-1]
        for part, data in session.splits.for_evaluation().items()
    }
    return StartWeights(seed, session.folder.w0(seed), measured, session.task)


def pretraining_iterations(session: Session, seed: int) -> int:
    """Return how many updates it takes to train w0."""
    return session.experiment.pretrain.iterations(session.batches(seed, "pretraining").per_epoch)


def _make_w0(session: Session, seed: int, number: int) -> nn.Module:
    recipe = session.experiment.pretrain
    if recipe.weights:
        model = session.build_seeded_model(seed)
        classes = len(session.splits.train.class_names)
        path = Path(recipe.weights).expanduser()
        head = load_start_weights(model, path, classes)
        used = checksum(path)
        require_same_weights(session.folder, path, used)
        session.engine.first_does(lambda: keep_weights(session.folder, path, used))
        if head:
            _train_new_head(session, seed, model)
        return model
    own_seed = seed if number == 1 else derive_seed(seed, "deep ensemble", number)
    model = session.build_seeded_model(own_seed, **recipe.options)
    if recipe.options:
        _check_that_members_can_start_there(session, model)
    if recipe.epochs:
        checkpoint = CHECKPOINT if number == 1 else f"pretrain-{number}.checkpoint"
        name = "w0" if number == 1 else f"start {number}"
        _train(
            session, own_seed, model, session.folder.of_seed(seed) / checkpoint, f"seed {seed}: find {name}"
        )
    return model


def _train_new_head(session: Session, seed: int, model: nn.Module) -> None:
    if not session.experiment.pretrain.epochs:
        raise ConfigError(
            "pretrain.weights have a head of another number of classes, and the model's own is untrained; "
            "set pretrain.epochs above 0 to train it"
        )
    _train(session, seed, model, session.folder.of_seed(seed) / CHECKPOINT, f"seed {seed}: find w0")


def _check_that_members_can_start_there(session: Session, model: nn.Module) -> None:
    without = view_weights(session.build_seeded_model(0))
    try:
        require_same_layout(without, view_weights(model), "the model", "w0")
    except ValueError as error:
        raise ConfigError(
            f"pretrain.options must give a model of the same weights as without them, but {error}; "
            "options that change its shape belong in model.options"
        ) from None


def _train(session: Session, seed: int, model: nn.Module, checkpoint: Path, name: str) -> None:
    recipe = session.experiment.pretrain
    source = session.batches(seed, "pretraining")
    iterations = pretraining_iterations(session, seed)
    optimizer = make_optimizer(model, recipe, rate=recipe.rate)
    trajectory = Trajectory(model, optimizer, pretraining_schedule(iterations, recipe.rate), [])
    train_resumable(session, trajectory, source, Training(name, seed, iterations, checkpoint))
