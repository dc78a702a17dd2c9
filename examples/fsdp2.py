"""PFGE of a model whose weights FSDP2 splits among processes.

Run it with `torchrun --nproc_per_node=2 examples/fsdp2.py FOLDER`, where FOLDER will hold the members; it
takes a few seconds, on the CPU. Each process averages its own parts of the weights. The members are written
whole, by one process, and are an ordinary ensemble.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import pfge


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 65), nn.LayerNorm(65), nn.ReLU(), nn.Linear(65, 10))


def train(folder: str) -> None:
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)

    torch.manual_seed(0)
    model = make_model()
    mesh = init_device_mesh("cpu", (processes,))
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    collector = pfge.PFGE(cycle=15, period=75, store=folder)
    trajectory = pfge.Trajectory(model, optimizer, pfge.Triangular(15, 5e-4, 0.1), [collector])
    for _ in range(300):
        batch = torch.randint(1000, (100,))[
            rank::processes
        ]  # each process draws the same, and takes its share
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        trajectory.before_update()
        optimizer.step()
        trajectory.after_update()

    if rank == 0:
        ensemble = pfge.Ensemble.load(folder, make_model)  # no FSDP from here on
        accuracy = pfge.metrics.accuracy(ensemble.predict(x[1000:]), y[1000:])
        print(f"{processes} processes, {len(ensemble)} members, accuracy {accuracy:.1%}")


def main() -> None:
    distributed.init_process_group("gloo")
    train(sys.argv[1])
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
