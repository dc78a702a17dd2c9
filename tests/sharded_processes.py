"""What each of two processes does with a model that FSDP2 splits between them."""

from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pfge import (
    EMA,
    FGE,
    PFGE,
    SWA,
    SWAG,
    Collector,
    Constant,
    Trajectory,
    load_checkpoint,
    refresh_batch_norm,
    save_checkpoint,
)
from pfge.collectors import Star
from pfge.sharding import is_split
from pfge.weights import distance, load_weights, view_weights
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


def make_net_with_a_frozen_layer() -> nn.Sequential:
    """Its frozen weight is in another memory order than files have."""
    model = make_net()
    model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
    model[0].requires_grad_(False)
    return model


def make_averages() -> list[Collector]:
    return [SWA(1), PFGE(1, 8), EMA(0.5), FGE(1), SWAG(1, rank=2, samples=2)]


def unfreeze(trajectory: Trajectory) -> None:
    trajectory.model[0].requires_grad_(True)


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


def apply_average_with_batch_norm_of_all(folder: Path) -> None:
    """Validate one model in both processes, of which each has another half of the examples."""
    model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(4), make_net()))
    trajectory = Trajectory(model, make_adam(model), Constant(0.01), [swa := SWA(1)])
    advance(trajectory, 2)
    own = model.module[0].running_mean.clone()
    with swa.applied(model):
        half = make_batch(0)[0][distributed.get_rank() :: 2]
        refresh_batch_norm(model, [half], across_processes=True)
        found = model.module[0].running_mean.clone()
    same = torch.equal(model.module[0].running_mean, own)
    save_checkpoint(folder / f"batch norm {distributed.get_rank()}", [own, found, same])


def restart_from_the_start(folder: Path) -> None:
    stars = [Star(4, tail=2), Star(4, tail=2)]
    trajectory, resumed = (start([star]) for star in stars)
    advance(trajectory, STOP)
    save_checkpoint(folder / "state of the star", trajectory.state_dict())
    distributed.barrier()
    resumed.load_state_dict(load_checkpoint(folder / "state of the star"))
    for name, run, star in zip(("whole", "resumed"), (trajectory, resumed), stars, strict=True):
        advance(run, ITERATIONS - STOP)
        start_point = star.state_dict()["start"]
        sizes = {key: list(t.to_local().shape) for key, t in start_point.items() if is_split(t)}
        found = {"members": list(star.members()), "sizes": sizes}
        save_checkpoint(folder / f"star {name} {distributed.get_rank()}", found)


def collect_after_an_evaluation(folder: Path) -> None:
    """Begin with a frozen layer where a pass without gradients has left whole parameters behind."""
    model = make_net()
    model[2].requires_grad_(False)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer, fge = make_adam(model), FGE(1)
    with torch.no_grad():
        loss_of(model, 0)
    advance(Trajectory(model, optimizer, Constant(0.01), [fge]), 3)
    save_checkpoint(folder / f"evaluated {distributed.get_rank()}", list(fge.members()))


def collect_whole_parameters(folder: Path) -> None:
    """Train with whole parameters that stay from the backward pass until after the update."""
    fge = FGE(1)
    trajectory = start([fge])
    modules = [trajectory.model, trajectory.model[0], trajectory.model[3]]
    trajectory.model.set_reshard_after_backward(False)
    for _ in range(3):
        advance(trajectory, 1)
        for module in modules:
            module.reshard()
    save_checkpoint(folder / f"left whole {distributed.get_rank()}", list(fge.members()))


def unfreeze_what_is_not_split(folder: Path) -> None:
    """Stop and resume a training whose frozen layer FSDP2 ignores, and train that layer from then on."""
    rank = distributed.get_rank()
    for stop in (2, 0):
        model = make_net_with_a_frozen_layer()
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model, mesh=mesh, ignored_params=set(model[0].parameters()))
        trajectory = Trajectory(model, make_adam(model), Constant(0.01), collectors := make_averages())
        if stop:
            advance_together(trajectory, stop)
            save_checkpoint(folder / "state before unfreezing", trajectory.state_dict())
            distributed.barrier()
        else:
            trajectory.load_state_dict(load_checkpoint(folder / "state before unfreezing"))
        unfreeze(trajectory)
        advance_together(trajectory, 4)
        name = "unfrozen" if stop else "unfrozen, resumed"
        save_checkpoint(folder / f"{name} {rank}", [list(collector.members()) for collector in collectors])


def advance_together(trajectory: Trajectory, iterations: int) -> None:
    """Train on all examples in each process: the gradients of what is not split are each its own."""
    for _ in range(iterations):
        trajectory.optimizer.zero_grad()
        loss_of(trajectory.model, trajectory.iteration + 1).backward()
        trajectory.before_update()
        trajectory.optimizer.step()
        trajectory.after_update()


def draw_in_one_process(folder: Path) -> None:
    swag = SWAG(CYCLE, rank=2, samples=2)
    advance(start([swag]), ITERATIONS)
    members = swag.members()
    if distributed.get_rank() == 0:
        save_checkpoint(folder / "drawn", list(members))


def measure_distance(folder: Path) -> None:
    weights = view_weights(split(make_net()))
    split_zeros = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    zeros = {name: torch.zeros(tensor.shape) for name, tensor in weights.items()}
    found = [distance(weights, split_zeros), distance(weights, zeros), distance(zeros, weights)]
    save_checkpoint(folder / f"distance {distributed.get_rank()}", found)


def refuse_zero(folder: Path) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of what torch itself deprecates

    model = DistributedDataParallel(make_net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    try:
        Trajectory(model, optimizer, None, [PFGE(CYCLE, PERIOD)])
    except ValueError as error:
        (folder / f"zero {distributed.get_rank()}").write_text(str(error))


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


CASES = (
    train_and_resume,
    refuse_nan,
    load_while_whole,
    apply_average,
    apply_average_with_batch_norm_of_all,
    restart_from_the_start,
    collect_after_an_evaluation,
    collect_whole_parameters,
    unfreeze_what_is_not_split,
    draw_in_one_process,
    measure_distance,
    refuse_zero,
)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for case in CASES:
        case(folder)
        distributed.barrier()
    distributed.destroy_process_group()
