import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from accelerate import DistributedType
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from pfge import FGE, PFGE, SWA, Triangular, load_checkpoint, save_checkpoint
from pfge.integrations.transformers import FILE, CollectWeights, is_causal_lm
from pfge.tasks import CausalLM, Classification
from tests.integrations.tiny_bert import BATCH, CONFIG, make_bert, make_trainer
from tests.processes import launch
from tests.toys import make_mlp

PLAIN_SCRIPT = """
import sys
import tests.integrations
from transformers import BertConfig, BertForSequenceClassification
import pfge
config = BertConfig.from_json_file(sys.argv[1] + "/config.json")
ensemble = pfge.Ensemble.load(sys.argv[1] + "/ensemble", lambda: BertForSequenceClassification(config))
batch = pfge.load_checkpoint(sys.argv[1] + "/batch")
pfge.save_checkpoint(sys.argv[1] + "/found", ensemble.predict(batch))
assert "transformers.trainer" not in sys.modules
"""


@pytest.mark.slow
def test_an_ensemble_is_made_from_the_config_and_predicts_the_same_in_a_plain_script(tmp_path: Path) -> None:
    trainer, callback = make_trainer(tmp_path / "run", Triangular(2, 0.001, 0.01), PFGE(2, 4))
    trainer.train()
    ensemble = callback.ensemble()
    assert ensemble.iterations == [4, 8, 12]
    assert ensemble.model == "transformers.models.bert.modeling_bert:BertForSequenceClassification"
    ensemble.save(tmp_path / "ensemble")
    CONFIG.to_json_file(tmp_path / "config.json")
    save_checkpoint(tmp_path / "batch", BATCH)
    launch("-c", PLAIN_SCRIPT, str(tmp_path))
    assert torch.equal(load_checkpoint(tmp_path / "found"), ensemble.predict(BATCH))


def test_the_rates_that_were_used_are_logged(tmp_path: Path) -> None:
    schedule = Triangular(4, 0.001, 0.01)
    trainer, _ = make_trainer(tmp_path, schedule, FGE(4))
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == pytest.approx([schedule(iteration) for iteration in range(1, 13)])


def test_without_a_schedule_the_trainers_own_is_used(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, None, FGE(4), learning_rate=0.01)
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == pytest.approx([0.01 * (12 - done) / 12 for done in range(12)])


def test_the_best_model_may_be_loaded_at_the_end(tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    plain, expected = make_trainer(tmp_path / "plain", None, SWA(2))
    best, found = make_trainer(tmp_path / "best", None, SWA(2), load_best_model_at_end=True, **options)
    for trainer in (plain, best):
        trainer.train()
    assert best.state.best_model_checkpoint is not None
    assert torch.equal(found.ensemble().predict(BATCH), expected.ensemble().predict(BATCH))


def save_at_six(folder: Path, **options: Any) -> None:
    make_trainer(folder, None, FGE(2), save_strategy="steps", save_steps=6, **options)[0].train()


def test_a_checkpoint_elsewhere_is_resumed_from_when_it_is_named(tmp_path: Path) -> None:
    save_at_six(tmp_path / "run")
    shutil.move(tmp_path / "run" / "checkpoint-6", tmp_path / "moved")
    trainer, callback = make_trainer(tmp_path / "run", None, FGE(2), checkpoint=tmp_path / "moved")
    trainer.train(resume_from_checkpoint=str(tmp_path / "moved"))
    assert callback.ensemble().iterations == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("other", ["missing", "of another run"])
def test_a_checkpoint_without_its_file_is_a_start_point_with_a_warning(other: str, tmp_path: Path) -> None:
    save_at_six(tmp_path / "run")
    folder = shutil.copytree(tmp_path / "run" / "checkpoint-6", tmp_path / "copied")
    if other == "missing":
        (tmp_path / "run" / "checkpoint-6" / FILE).unlink()
    else:
        state = tmp_path / "run" / "checkpoint-6" / "trainer_state.json"
        state.write_text(json.dumps(json.loads(state.read_text()) | {"log_history": []}))
    trainer, callback = make_trainer(tmp_path / "run", None, FGE(2))
    with pytest.warns(
        UserWarning, match=r"no pfge.safetensors of the checkpoint .* begins at step 6; pass che"
    ):
        trainer.train(resume_from_checkpoint=str(folder))
    assert callback.ensemble().iterations == [2, 4, 6]


NO_FILE = r"no pfge.safetensors of the checkpoint .* begins at step 6; pass che"


def test_members_of_another_run_are_not_taken_before_anything_was_logged(tmp_path: Path) -> None:
    for seed in (0, 1):
        save_at_six(tmp_path / str(seed), model=make_bert(seed), logging_steps=500)
    trainer, callback = make_trainer(tmp_path / "0", None, FGE(2), logging_steps=500)
    with pytest.warns(UserWarning, match=NO_FILE):
        trainer.train(resume_from_checkpoint=str(tmp_path / "1" / "checkpoint-6"))
    assert callback.ensemble().iterations == [2, 4, 6]


def test_members_of_a_run_whose_checkpoint_was_overwritten_without_them_are_not_taken(tmp_path: Path) -> None:
    save_at_six(tmp_path)
    options = {"save_strategy": "steps", "save_steps": 6}
    plain, callback = make_trainer(tmp_path, None, FGE(2), model=make_bert(1), **options)
    plain.remove_callback(callback)
    plain.train()
    trainer, callback = make_trainer(tmp_path, None, FGE(2), model=make_bert(1))
    with pytest.warns(UserWarning, match=NO_FILE):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert callback.ensemble().iterations == [2, 4, 6]


def test_members_of_another_step_are_not_taken(tmp_path: Path) -> None:
    # A rate of 0: only the step tells the checkpoints from each other.
    options = {"learning_rate": 0.0, "logging_steps": 500}
    make_trainer(tmp_path, None, FGE(2), save_strategy="steps", save_steps=3, **options)[0].train()
    other = tmp_path / "checkpoint-3"
    trainer, callback = make_trainer(tmp_path, None, FGE(2), checkpoint=other, **options)
    with pytest.warns(UserWarning, match=NO_FILE):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert callback.ensemble().iterations == [2, 4, 6]


def test_a_file_of_an_earlier_version_is_resumed_from(tmp_path: Path) -> None:
    save_at_six(tmp_path)
    file = tmp_path / "checkpoint-6" / FILE
    state = load_checkpoint(file)
    del state["trainer"]
    save_checkpoint(file, state)
    trainer, callback = make_trainer(tmp_path, None, FGE(2))
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert callback.ensemble().iterations == [2, 4, 6, 8, 10, 12]


def test_a_folder_without_the_trainers_state_is_a_start_point_with_a_warning(tmp_path: Path) -> None:
    save_at_six(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(tmp_path / "checkpoint-6" / FILE, other)
    trainer, _ = make_trainer(tmp_path, None, FGE(2), checkpoint=other)
    with pytest.warns(UserWarning, match=NO_FILE):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))


def test_checkpoints_that_are_written_elsewhere_hold_no_members_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, callback = make_trainer(tmp_path, None, FGE(2), save_strategy="steps", save_steps=12)
    monkeypatch.setattr(trainer, "_get_output_dir", lambda trial: str(tmp_path / "elsewhere"))  # noqa: ARG005
    with pytest.warns(UserWarning, match=r"checkpoint-12 is not a folder, so members are not saved; let"):
        trainer.train()
    assert callback.ensemble().iterations == [2, 4, 6, 8, 10, 12]


def test_checkpoints_on_a_signal_are_warned_of(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        trainer, _ = make_trainer(tmp_path, None, FGE(2), enable_jit_checkpoint=True, max_steps=1)
        with pytest.warns(UserWarning, match=r"got enable_jit_checkpoint=True, .*; resume from one of sav"):
            trainer.train()
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_a_hyperparameter_search_is_refused(tmp_path: Path) -> None:
    trainer, callback = make_trainer(tmp_path, None, FGE(2))
    state = transformers.TrainerState(is_hyper_param_search=True)
    with pytest.raises(ValueError, match=r"one training, got a hyperparameter search, .*remove_callback\("):
        callback.on_train_begin(trainer.args, state, trainer.control)


def test_checkpoints_that_cannot_be_resumed_from_hold_no_members(tmp_path: Path) -> None:
    save_at_six(tmp_path, save_only_model=True)
    assert (tmp_path / "checkpoint-6").is_dir()
    assert not (tmp_path / "checkpoint-6" / FILE).exists()


def test_resuming_with_another_period_is_refused_and_the_members_stay(tmp_path: Path) -> None:
    save_at_six(tmp_path)
    trainer, _ = make_trainer(tmp_path, None, FGE(3))
    with pytest.raises(ValueError, match=r"the state is of the collectors.*cycle=2.*got.*cycle=3"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    trainer, callback = make_trainer(tmp_path, None, FGE(2))
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert callback.ensemble().iterations == [2, 4, 6, 8, 10, 12]


def test_training_again_after_an_interruption_continues_from_the_checkpoint(tmp_path: Path) -> None:
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if state.global_step == 8:
                raise KeyboardInterrupt

    trainer, callback = make_trainer(tmp_path, None, FGE(2), save_strategy="steps", save_steps=6)
    trainer.add_callback(Stop())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.remove_callback(Stop)
    trainer.train(resume_from_checkpoint=True)
    assert callback.ensemble().iterations == [2, 4, 6, 8, 10, 12]


def test_after_an_interruption_another_callback_is_taken_once_the_first_is_detached(tmp_path: Path) -> None:
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            raise KeyboardInterrupt

    trainer, callback = make_trainer(tmp_path, None, FGE(2))
    trainer.add_callback(Stop())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.remove_callback(Stop)
    trainer.remove_callback(callback)
    other = CollectWeights(None, [FGE(2)])
    trainer.add_callback(other)
    with pytest.raises(ValueError, match=r"or call detach\(\) of the other one if its training was"):
        trainer.train()
    callback.detach()
    trainer.train()
    assert other.ensemble().iterations == [2, 4, 6, 8, 10, 12]


def test_a_callback_that_is_added_twice_is_refused(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, None, FGE(2))
    trainer.add_callback(CollectWeights(None, [SWA(1)]))
    with pytest.raises(ValueError, match=r"followed by one CollectWeights at a time.*give it all collectors"):
        trainer.train()


def test_deepspeed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = make_trainer(tmp_path, None, FGE(2))
    state = SimpleNamespace(distributed_type=DistributedType.DEEPSPEED)
    monkeypatch.setattr("pfge.integrations.transformers.AcceleratorState", lambda: state)
    with pytest.raises(ValueError, match="whole weights, got DEEPSPEED; use DDP"):
        trainer.train()


class Texts(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = (torch.arange(6) * (index + 1)) % 11
        return {"input_ids": ids, "labels": ids}


def test_a_causal_language_model_is_scored_by_next_tokens_as_its_own_loss_is(tmp_path: Path) -> None:
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    callback = CollectWeights(None, [FGE(2)])
    options = {"save_strategy": "no", "max_steps": 4, "per_device_train_batch_size": 4, "disable_tqdm": True}
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, dataloader_pin_memory=False, **options)
    data = Texts()
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=[callback])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    ensemble = callback.ensemble()
    assert ensemble.task == CausalLM()
    batch = {key: torch.stack([data[i][key] for i in range(8)]) for key in data[0]}
    last = ensemble.last(1)  # the weights at the end of training
    nll = ensemble.task.summarize(last.evaluate([batch]))["nll"]
    with torch.no_grad():
        assert nll == pytest.approx(trainer.model.eval()(**batch).loss.item(), rel=1e-5)
    given = Classification(dim=-1, ignore_index=-100)
    assert callback.ensemble(task=given).task == given


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GPT2LMHeadModel", True),
        ("LlamaForCausalLM", True),
        ("PeftModelForCausalLM", True),
        ("Gemma3ForConditionalGeneration", True),
        ("T5ForConditionalGeneration", False),
        ("BertForMaskedLM", False),
        ("BertForTokenClassification", False),
        ("XLNetLMHeadModel", False),
    ],
)
def test_models_whose_loss_is_of_the_next_token_are_known_by_their_class(name: str, expected: bool) -> None:
    kind = type(name, (nn.Module,), {})
    assert is_causal_lm(kind()) is expected
    assert is_causal_lm(type("Mine", (kind,), {})()) is expected
    adapted = type("PeftModel", (nn.Module,), {"get_base_model": lambda _: kind()})
    assert is_causal_lm(adapted()) is expected


def test_a_model_without_a_config_needs_build_model(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_mlp()
            self.embed = nn.Embedding(20, 4)

        def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
            logits = self.net(self.embed(input_ids).mean(dim=1))
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    trainer, callback = make_trainer(tmp_path, None, FGE(2), model=Plain())
    trainer.train()
    with pytest.raises(
        ValueError, match=r"Plain cannot be constructed .*; let its constructor take its config"
    ):
        callback.ensemble().predict(BATCH)
    assert callback.ensemble(Plain).predict(BATCH).shape == (5, 3)
