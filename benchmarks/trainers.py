"""What each callback costs: a step of a trainer with it against a step of the same trainer without it.

    python -m benchmarks.trainers [--quick]

The model is a BERT of 4 layers and 256 units with 11 million parameters (the size of BERT-mini), trained by
AdamW on random tokens. Short trainings with and without the callback alternate in one run. A training's time
is that between its second and its last batch, which spans two cycles and a restart; the ratio is the median
over pairs of trainings. The share is the CPU time of the calls that a callback adds, beside that of all else
in the same trainings: it says the same with less noise.
"""

import argparse
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pfge import EMA, PFGE, Collector, Trajectory, Triangular
from pfge.lab.models.packages import import_torchvision

import_torchvision()  # the trainers import it, too, and fail beside a torch of another build

import accelerate  # noqa: E402
import lightning.pytorch as pl  # noqa: E402
import transformers  # noqa: E402

import pfge.integrations.accelerate  # noqa: E402
import pfge.integrations.lightning  # noqa: E402
import pfge.integrations.transformers  # noqa: E402

CYCLE, PERIOD, STEPS = 10, 20, 22
SCHEDULE = Triangular(CYCLE, 1e-5, 1e-4)
CONFIG = transformers.BertConfig(
    hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, num_labels=4
)
METHODS: dict[str, Callable[[], Collector]] = {
    "PFGE, c = 10": lambda: PFGE(CYCLE, PERIOD),
    "EMA, every step": lambda: EMA(0.999),
}
Batch = dict[str, Tensor]


class Clock:
    """Makes batches and notes when each is asked for."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, examples: list[Batch]) -> Batch:
        """Return a batch of examples."""
        self.times.append(time.perf_counter())
        return {key: torch.stack([example[key] for example in examples]) for key in examples[0]}

    def seconds(self) -> float:
        """Return the time from the second batch to the last one."""
        return self.times[-1] - self.times[1]


class Added:
    """The CPU time in a trajectory's calls, which are all that a callback adds to a step."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for name in ("before_update", "after_update"):
            setattr(Trajectory, name, self._timed(getattr(Trajectory, name)))

    def _timed(self, method: Callable[[Trajectory], None]) -> Callable[[Trajectory], None]:
        def timed(trajectory: Trajectory) -> None:
            start = time.process_time()
            method(trajectory)
            self.seconds += time.process_time() - start

        return timed


def make_examples(batch: int, tokens: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "input_ids": torch.randint(CONFIG.vocab_size, (tokens,), generator=generator),
            "labels": torch.randint(4, (), generator=generator),
        }
        for _ in range(STEPS * batch)
    ]


def make_model() -> transformers.BertForSequenceClassification:
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(CONFIG)


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-5)


class Module(pl.LightningModule):  # type: ignore[misc]
    """The model for Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_model()

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """Return the loss."""
        loss: Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return make_optimizer(self)


def train_lightning(examples: list[Batch], batch: int, collectors: Sequence[Collector]) -> float:
    """Return the seconds of a training in Lightning."""
    clock = Clock()
    callbacks = [pfge.integrations.lightning.CollectWeights(SCHEDULE, collectors)] if collectors else []
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(examples, batch_size=batch, collate_fn=clock))  # type: ignore[arg-type]
    return clock.seconds()


def train_transformers(examples: list[Batch], batch: int, collectors: Sequence[Collector]) -> float:
    """Return the seconds of a training in the Trainer of transformers."""
    clock = Clock()
    callbacks = [pfge.integrations.transformers.CollectWeights(SCHEDULE, collectors)] if collectors else []
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=batch,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = transformers.Trainer(
            make_model(), arguments, train_dataset=examples, data_collator=clock, callbacks=callbacks
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return clock.seconds()


def train_accelerate(examples: list[Batch], batch: int, collectors: Sequence[Collector]) -> float:
    """Return the seconds of a loop with accelerate."""
    clock = Clock()
    accelerator = accelerate.Accelerator(cpu=True)
    model = make_model().train()
    loader: Any = DataLoader(examples, batch_size=batch, collate_fn=clock)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, make_optimizer(model), loader)
    if collectors:
        pfge.integrations.accelerate.CollectWeights(accelerator, model, optimizer, SCHEDULE, collectors)
    for inputs in loader:
        optimizer.zero_grad()
        accelerator.backward(model(**inputs).loss)
        optimizer.step()
    accelerator.free_memory()
    return clock.seconds()


TRAINERS: dict[str, Callable[[list[Batch], int, Sequence[Collector]], float]] = {
    "lightning": train_lightning,
    "transformers": train_transformers,
    "accelerate": train_accelerate,
}


def measure(
    trainer: str, method: str, examples: list[Batch], batch: int, pairs: int, added: Added
) -> tuple[float, float]:
    """Return the median ratio of a training with a callback to one without, and the share of its calls."""
    train = TRAINERS[trainer]
    train(examples, batch, [METHODS[method]()])  # warms up
    ratios, shares = [], []
    for pair in range(pairs):
        seconds = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):  # who goes first alternates
            added.seconds, start = 0.0, time.process_time()
            seconds[which] = train(examples, batch, [METHODS[method]()] if which else [])
            if which:
                shares.append(added.seconds / (time.process_time() - start - added.seconds))
        ratios.append(seconds[1] / seconds[0])
    return median(ratios), median(shares)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller batches, fewer repetitions, under 50 s")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    batch, tokens, pairs = (4, 32, 2) if options.quick else (16, 64, 11)
    examples = make_examples(batch, tokens)
    found: dict[str, Any] = {}
    added = Added()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batch {batch} of {tokens} tokens\n")
    print(f"{'time of a step, with the callback / without':<48}{'ratio':>8}{'at most':>9}{'CPU share':>12}")
    for method in list(METHODS)[: 1 if options.quick else None]:
        for trainer in TRAINERS:
            ratio, share = measure(trainer, method, examples, batch, pairs, added)
            print(f"{f'{trainer}, {method}':<48}{ratio:>8.3f}{1.02:>9}{100 * share:>10.2f} %")
            found[f"{trainer}, {method}"] = {"time": round(ratio, 4), "cpu_share": round(share, 5)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
