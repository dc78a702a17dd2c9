"""What the pages of docs/trainers show is what happens."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import transformers
from accelerate import Accelerator
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset

import pfge
from tests.integrations.adapters import StatefulLoader
from tests.integrations.lightning_classifier import Classifier
from tests.integrations.tiny_bert import Sentences, make_bert
from tests.integrations.tiny_lora import make_lora, train
from tests.sharded_processes import loss_of, make_net
from tests.toys import make_batch, make_mlp, make_sgd

PAGES = Path(__file__).parents[2] / "docs" / "trainers"


def run_block(page: str, **names: Any) -> dict[str, Any]:
    """Run the program of a page."""
    (code,) = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)
    names["pfge"] = pfge
    exec(compile(code, f"{page}.md", "exec"), names)
    return names


def test_every_page_has_a_test() -> None:
    tested = re.findall(r'run_block\(\s*"(\w+)"', Path(__file__).read_text())
    assert sorted(tested) == sorted(page.stem for page in PAGES.glob("*.md"))


def test_the_program_for_lightning_gives_an_ensemble() -> None:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = partial(pl.Trainer, max_epochs=2, enable_model_summary=False, accelerator="cpu", **quiet)
    loader = StatefulLoader([make_batch(number) for number in range(200)])
    names = run_block("lightning", Trainer=trainer, module=Classifier(5), train_loader=loader)
    assert names["ensemble"].iterations == [200, 400]


def test_the_program_for_transformers_gives_an_ensemble(tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=100, use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False
    )
    arguments.set_save("no")
    names = run_block(
        "transformers",
        Trainer=transformers.Trainer,
        model=make_bert(),
        arguments=arguments,
        data=Sentences(),
    )
    assert names["ensemble"].iterations == [100]


def test_the_program_for_accelerate_follows_the_loop() -> None:
    model = make_mlp()
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(TensorDataset(*make_batch(0)), batch_size=4)
    names = run_block(
        "accelerate", accelerator=accelerator, model=model, optimizer=make_sgd(model), loader=loader
    )
    for inputs, _ in names["loader"]:
        accelerator.backward(names["model"](inputs).square().mean())
        names["optimizer"].step()
    assert names["collect"].trajectory.iteration == 4


def test_the_program_for_fsdp2_follows_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    names = run_block("fsdp2", torch=torch, model=make_net())
    for number in range(200):
        loss_of(names["model"], number).backward()
        names["trajectory"].before_update()
        names["optimizer"].step()
        names["trajectory"].after_update()
    assert len(pfge.Ensemble.load(tmp_path / "members", make_net)) == 1


def test_the_program_for_adapters_saves_and_loads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, collector = make_lora(), pfge.FGE(1)
    train(model, collector, 2)
    names = run_block("peft", model=model, collector=collector, make_base=make_bert)
    assert names["ensemble"].iterations == [1, 2]
