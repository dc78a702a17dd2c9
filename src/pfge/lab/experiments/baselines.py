"""Baselines: a deep ensemble, dropout that stays on at test time, and augmentation at test time."""

from pfge.ensemble import Ensemble
from pfge.lab.evaluation.augmented_passes import augmented_passes, views_in
from pfge.lab.evaluation.mc_dropout import mc_dropout
from pfge.lab.evaluation.record import record_ensemble, saved_ensemble
from pfge.lab.session import Session
from pfge.lab.training.pretrain import find_w0, pretraining_iterations
from pfge.methods import Method, Setting


def save_deep_ensemble(session: Session, seed: int, name: str, count: int) -> None:
    """Save members that were trained from starts of their own, w0 being the first."""
    members = [find_w0(session, seed, number) for number in range(1, count + 1)]
    # Not refreshed: each has the BatchNorm statistics of its own training.
    ensemble = session.make_ensemble(members, method=f"{name}({count})")
    session.engine.first_does(lambda: ensemble.save(session.folder.ensemble(seed, name)))


def record_deep_ensemble(session: Session, seed: int, name: str, count: int) -> None:
    """Measure a saved deep ensemble."""
    cost = (count - 1) * pretraining_iterations(session, seed)
    ensemble = saved_ensemble(session, seed, name)
    record_ensemble(session, seed, name, ensemble, iterations=cost, trainings=count)


def record_mc_dropout(session: Session, seed: int, name: str, samples: int) -> None:
    """Measure w0 with dropout left on."""
    ensemble = mc_dropout(
        find_w0(session, seed),
        session.build_model,
        samples=samples,
        seed=seed,
        task=session.task,
        forward=session.engine.forward,
    )
    record_ensemble(session, seed, name, ensemble.to(session.engine.device))


def augmented_ensemble(session: Session, seed: int, method: Method, setting: Setting) -> Ensemble:
    """Return the one model of another method as it sees pictures that are shifted and mirrored."""
    views = views_in(session, setting.members, method.name)
    ensemble = augmented_passes(
        saved_ensemble(session, seed, method.base).members[0],
        session.build_model,
        views,
        task=session.task,
        forward=session.engine.forward,
        method=f"{method.name}({len(views)})",
    )
    return ensemble.to(session.engine.device)


def record_augmented(session: Session, seed: int, method: Method, setting: Setting) -> None:
    """Measure the one model of another method on pictures that are shifted and mirrored."""
    ensemble = augmented_ensemble(session, seed, method, setting)
    record_ensemble(session, seed, method.name, ensemble, iterations=setting.iterations)
