"""A LoRA on a tiny BERT, and its training."""

from typing import Any

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch import nn

from pfge import FGE, PFGE, Constant, Ensemble, Trajectory
from tests.integrations.tiny_bert import BATCH, make_bert

LORA = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query", "value"], lora_dropout=0.1)


def make_lora(base: nn.Module | None = None, config: Any = LORA) -> PeftModel:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return get_peft_model(base or make_bert(), config)


def train(model: PeftModel, collector: FGE | PFGE, updates: int = 8) -> Ensemble:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.5, momentum=0.9)
    trajectory = Trajectory(model, optimizer, Constant(0.5), [collector])
    for _ in range(updates):
        optimizer.zero_grad()
        model(**BATCH).loss.backward()
        trajectory.before_update()
        optimizer.step()
        trajectory.after_update()
    return Ensemble.from_collector(collector, lambda: model)
