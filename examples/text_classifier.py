"""Compare methods on texts: items of different lengths, dict batches, AdamW.

Run it with `python examples/text_classifier.py`; it takes some seconds. The texts are made up: a review
is good or bad, and "not" turns the next opinion around.
"""

import random
import tempfile

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from pfge.cli.main import main
from pfge.lab.data import DatasetSplits

OPINIONS = {"good": 1, "great": 1, "lovely": 1, "bad": -1, "dull": -1, "poor": -1}
FILLERS = ["the", "a", "film", "plot", "cast", "was", "and", "it", "seemed", "quite", "rather", "very"]
WORDS = {word: number for number, word in enumerate(["<pad>", "not", *OPINIONS, *FILLERS])}


def make_review(drawn: random.Random) -> tuple[list[str], int]:
    words, mood = [], 0
    for _ in range(drawn.choice([1, 3, 5])):  # an odd number, so that one side wins
        opinion, negated = drawn.choice(list(OPINIONS)), drawn.random() < 0.3
        mood += -OPINIONS[opinion] if negated else OPINIONS[opinion]
        words += drawn.sample(FILLERS, drawn.randrange(4)) + ["not"] * negated + [opinion]
    return words, int(mood > 0)


class Reviews(Dataset):
    """Made-up reviews; in training, a word in ten is left out at random."""

    def __init__(self, count: int, seed: int, augment: bool = False):
        self.reviews = [make_review(random.Random(f"{seed}/{number}")) for number in range(count)]
        self.augment = augment

    def __len__(self) -> int:
        return len(self.reviews)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        words, label = self.reviews[index]
        if self.augment:
            words = [word for word in words if random.random() > 0.1] or words
        return torch.tensor([WORDS[word] for word in words]), label


def collate(items: list[tuple[Tensor, int]]) -> tuple[dict[str, Tensor], Tensor]:
    texts, labels = zip(*items, strict=True)
    lengths = torch.tensor([len(text) for text in texts])
    return {"tokens": pad_sequence(texts, batch_first=True), "lengths": lengths}, torch.tensor(labels)


class Net(nn.Module):
    """A recurrent network; the dict's keys are its arguments."""

    def __init__(self, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 16, padding_idx=0)
        self.recurrent = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, classes)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        return self.head(states[torch.arange(len(tokens)), lengths - 1])


def load() -> DatasetSplits:
    return DatasetSplits(
        train=Reviews(1000, seed=1, augment=True),
        validation=Reviews(500, seed=3),
        test=Reviews(1000, seed=2),
        classes=("bad", "good"),
        collate=collate,
    )


if __name__ == "__main__":
    settings = "name=text seeds=[1] data.name=text_classifier:load model.name=text_classifier:Net"
    settings += " pretrain.epochs=8 pretrain.optimizer=adamw pretrain.rate=0.005 ensemble.optimizer=adamw"
    settings += " ensemble.high=0.005 ensemble.cycle=1 ensemble.period=2 ensemble.length=8"
    folder = tempfile.mkdtemp(prefix="text-")
    raise SystemExit(main(["compare", "--out", folder, *(f"--set={item}" for item in settings.split())]))
