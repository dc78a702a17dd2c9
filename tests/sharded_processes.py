"""What each of two processes does with a model that FSDP2 splits between them.

torchrun runs it as `-m tests.sharded_processes FOLDER`.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from pfge import EMA, FGE, PFGE, SWA, SWAG, Collector, Constant, Trajectory, load_checkpoint, save_checkpoint
from pfge.collectors import Star
from pfge.weights import load_weights, view_weights
from tests.toys import make_batch

CYCLE, PERIOD, ITERATIONS, STOP = 2, 4, 10, 5


def make_net() -> nn.Sequential:
    """A net of which no layer's first dimension is even."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3), nn.Linear(3, 1))


def make_collectors() -> list[Collector]:
    return [PFGE(CYCLE, PERIOD), SWA(CYCLE), EMA(0.8), FGE(3), SWAG(CYCLE, rank=2, samples=2)]


def make_adam(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, iteration: int, shares: slice = slice(None)) -> Tensor:
    inputs, _ = make_batch(iteration)
    return (model(inputs[shares]).squeeze(1) - inputs[shares].sum(dim=1)).square().mean()


def split(model: nn.Sequential) -> nn.Sequential:
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def start(collectors: list[Collector]) -> Trajectory:
    model = split(make_net())
    return Trajectory(model, make_adam(model), Constant(0.01), collectors)


def advance(trajectory: Trajectory, iterations: int) -> None:
    """Train on every second example, as its rank says, so that the mean gradient is that of all."""
    rank = distributed.get_rank()
    for _ in range(iterations):
        trajectory.optimizer.zero_grad()
        loss_of(trajectory.model, trajectory.iteration + 1, slice(rank, None, 2)).backward()
        trajectory.before_update()
        trajectory.optimizer.step()
        trajectory.after_update()


def train_and_resume(folder: Path) -> None:
    collectors = make_collectors()
    trajectory = start(collectors)
    advance(trajectory, STOP)
    save_checkpoint(folder / "state", trajectory.state_dict())
    distributed.barrier()
    advance(trajectory, ITERATIONS - STOP)
    resumed = start(make_collectors())
    resumed.load_state_dict(load_checkpoint(folder / "state"))
    advance(resumed, ITERATIONS - STOP)
    for name, found in (("whole", collectors), ("resumed", resumed.collectors)):
        members = [list(collector.members()) for collector in found]
        save_checkpoint(folder / f"{name} {distributed.get_rank()}", members)


def refuse_nan(folder: Path) -> None:
    fge = FGE(1)
    trajectory = start([fge])
    advance(trajectory, 1)
    if distributed.get_rank() == 0:  # the bias of one number has no part in the other process
        with torch.no_grad():
            trajectory.model[3].bias.to_local().fill_(torch.nan)
    try:
        fge.observe(2, view_weights(trajectory.model))
    except ValueError as error:
        (folder / f"error {distributed.get_rank()}").write_text(f"{fge.iterations} {error}")


def load_while_whole(folder: Path) -> None:
    """Load other weights where a forward pass has left whole parameters behind."""
    model = split(make_net())
    with torch.no_grad():
        loss_of(model, 0)
        load_weights(model, {name: torch.full(p.shape, 0.5) for name, p in make_net().named_parameters()})
        found = loss_of(model, 0)
    sizes = {name: tuple(tensor.to_local().shape) for name, tensor in view_weights(model).items()}
    save_checkpoint(folder / f"loaded {distributed.get_rank()}", {"loss": found, "sizes": sizes})


def restart_from_the_start(folder: Path) -> None:
    star = Star(4, tail=2)
    advance(start([star]), ITERATIONS)
    save_checkpoint(folder / f"star {distributed.get_rank()}", list(star.members()))


def apply_average(folder: Path) -> None:
    """Validate with the average between two updates."""
    swa = SWA(1)
    trajectory = start([swa])
    advance(trajectory, 2)
    with swa.applied(trajectory.model), torch.no_grad():
        found = loss_of(trajectory.model, 0)
    with torch.no_grad():
        after = loss_of(trajectory.model, 0)
    save_checkpoint(folder / f"applied {distributed.get_rank()}", [found, after])


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    train_and_resume(folder)
    refuse_nan(folder)
    load_while_whole(folder)
    apply_average(folder)
    restart_from_the_start(folder)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
