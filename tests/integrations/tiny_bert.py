"""A BERT with one layer, sentences for it, and a Trainer of it."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from pfge import Collector
from pfge.integrations.transformers import CollectWeights
from pfge.schedules import Schedule

CONFIG = BertConfig(
    vocab_size=20,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=8,
    num_labels=3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


class Sentences(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = (torch.arange(6) * (index + 1)) % 20
        return {"input_ids": ids, "attention_mask": torch.ones(6).long(), "labels": ids.sum() % 3}


def make_bert(seed: int = 0) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    return BertForSequenceClassification(CONFIG)


def make_trainer(
    folder: Path,
    schedule: Schedule | None,
    *collectors: Collector,
    model: nn.Module | None = None,
    checkpoint: Path | None = None,
    **options: Any,
) -> tuple[Trainer, CollectWeights]:
    callback = CollectWeights(schedule, collectors, checkpoint=checkpoint)
    usual = {"save_strategy": "no", "num_train_epochs": 2, "per_device_train_batch_size": 4}
    usual |= {"disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, "logging_steps": 1}
    usual |= {"train_sampling_strategy": "sequential"}
    arguments = TrainingArguments(str(folder), **(usual | options))
    data = Sentences()
    trainer = Trainer(
        model or make_bert(), arguments, train_dataset=data, eval_dataset=data, callbacks=[callback]
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer, callback


BATCH = {key: torch.stack([Sentences()[i][key] for i in range(5)]) for key in Sentences()[0]}
