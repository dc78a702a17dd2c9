"""A BERT classifier in the Trainer of transformers gains PFGE by one callback.

Run it with `python examples/bert_in_the_trainer.py`; it takes a few seconds and downloads nothing: the model
is small and has random weights, and a sentence's class is the token that it has most often.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import pfge
from pfge.integrations.transformers import CollectWeights

CLASSES, LENGTH = 4, 12
CONFIG = BertConfig(
    vocab_size=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=LENGTH,
    num_labels=CLASSES,
)


class Sentences(Dataset[dict[str, Tensor]]):
    """Sentences of random tokens, five of which are the number of the class."""

    def __init__(self, count: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        self.tokens = torch.randint(16, (count, LENGTH), generator=generator)
        self.tokens[:, :5] = self.labels[:, None]
        order = torch.rand(count, LENGTH, generator=generator).argsort(dim=1)
        self.tokens = self.tokens.gather(1, order)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def make_model() -> BertForSequenceClassification:
    return BertForSequenceClassification(CONFIG)


def main() -> None:
    torch.manual_seed(0)
    train, test = Sentences(512, seed=1), Sentences(256, seed=2)
    collect = CollectWeights(pfge.Triangular(8, 5e-4, 5e-3), [pfge.PFGE(cycle=8, period=32)])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=4,
            per_device_train_batch_size=16,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        Trainer(make_model(), arguments, train_dataset=train, callbacks=[collect]).train()
        ensemble = collect.ensemble()
        ensemble.save(Path(folder) / "ensemble")

        # A program that has no Trainer loads what was saved.
        loaded = pfge.Ensemble.load(Path(folder) / "ensemble", make_model)
        probabilities = loaded.predict({"input_ids": test.tokens})
    print(f"{len(loaded)} members of iterations {loaded.iterations}")
    print(f"accuracy {pfge.metrics.accuracy(probabilities, test.labels):.1%}")
    same = torch.equal(probabilities, ensemble.predict({"input_ids": test.tokens}))
    print(f"loaded without the Trainer, it predicts the same: {same}")


if __name__ == "__main__":
    main()
