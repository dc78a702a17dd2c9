"""What each of two processes does: train by every integration, and save what it finds collected."""

import os
from pathlib import Path

import torch
from torch import distributed

from pfge import save_checkpoint
from tests.integrations.adapters import ADAPTERS, Run
from tests.integrations.problem import SCHEDULE, Problem, make_collectors


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for adapter in ADAPTERS:
        collectors = make_collectors(folder / adapter.name)
        adapter.train(Run(Problem(batch_norm=False, processes=2), SCHEDULE, collectors, folder))
        members = [list(collector.members()) for collector in collectors]
        save_checkpoint(folder / f"{adapter.name} {os.environ['RANK']}", members)
    distributed.destroy_process_group()
