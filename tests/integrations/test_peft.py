import json
import socket
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, TaskType
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from pfge import FGE, PFGE, Ensemble, StorageError
from pfge.calibration import Temperatures
from pfge.integrations.peft import _ALLOWED as ALLOWED
from pfge.integrations.peft import CONFIG, WEIGHTS, load_adapters, read_config, save_adapters
from pfge.storage.ensemble_folder import MANIFEST
from pfge.storage.record import InputSpec
from pfge.weights import copy_weights, trained_names, view_weights
from tests.integrations.tiny_bert import BATCH, make_bert, make_trainer
from tests.integrations.tiny_lora import make_lora, train
from tests.resealed import edit_json
from tests.toys import assert_same_weights, make_mlp

INPUTS = {key: value for key, value in BATCH.items() if key != "labels"}


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    """Four members of a LoRA on a tiny BERT."""
    return train(make_lora(), PFGE(1, 2))


@pytest.fixture
def saved(ensemble: Ensemble, tmp_path: Path) -> Path:
    save_adapters(ensemble, tmp_path / "saved")
    return tmp_path / "saved"


def adapters_in(folder: Path) -> list[Path]:
    entries = json.loads((folder / MANIFEST).read_text())["members"]
    return [folder / entry["folder"] for entry in entries]


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_an_ensemble_of_adapters_predicts_the_same_in_a_new_base(ensemble: Ensemble, saved: Path) -> None:
    expected = ensemble.predict_members(INPUTS)
    assert len(expected.unique(dim=0)) == 4
    loaded = load_adapters(saved, make_bert())
    assert torch.equal(loaded.predict_members(INPUTS), expected)
    assert loaded.iterations == [2, 4, 6, 8]
    assert loaded.method == "PFGE(cycle=1, period=2, phase=0, average_start=True, clear_momentum=True)"


def test_peft_itself_loads_each_adapter(ensemble: Ensemble, saved: Path) -> None:
    expected = ensemble.predict_members(INPUTS)
    for number, folder in enumerate(adapters_in(saved)):
        model = PeftModel.from_pretrained(make_bert(), str(folder)).eval()
        with torch.no_grad():
            assert torch.equal(model(**INPUTS).logits.softmax(dim=1), expected[number])


def test_four_adapters_take_the_bytes_of_four_adapters(
    ensemble: Ensemble, saved: Path, tmp_path: Path
) -> None:
    model = ensemble.build_model()
    model.save_pretrained(tmp_path / "one")
    one = (tmp_path / "one" / WEIGHTS).stat().st_size
    assert [(folder / WEIGHTS).stat().st_size for folder in adapters_in(saved)] == [one] * 4
    base = make_bert()
    base.save_pretrained(tmp_path / "base")
    assert size_of(saved) <= 1.05 * (size_of(tmp_path / "base") + 4 * one)
    adapter = sum(view_weights(model)[name].nbytes for name in trained_names(make_lora()))
    loaded = load_adapters(saved, base)
    assert (loaded.nbytes, loaded.last(1).nbytes) == (4 * adapter, adapter)


def test_four_members_take_one_base_and_four_adapters(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 200}
    config = BertConfig(num_attention_heads=2, max_position_embeddings=8, num_labels=3, **shape)
    model = make_lora(BertForSequenceClassification(config))
    trained = trained_names(model)
    ensemble = train(model, PFGE(1, 2))
    adapter = sum(tensor.nbytes for name, tensor in view_weights(model).items() if name in trained)
    base = sum(tensor.nbytes for name, tensor in view_weights(model).items() if name not in trained)
    assert ensemble.nbytes == base + 4 * adapter
    ensemble.save(tmp_path / "plain")
    save_adapters(ensemble, tmp_path / "adapters")
    assert size_of(tmp_path / "plain") <= 1.05 * (base + 4 * adapter)
    assert size_of(tmp_path / "adapters") <= 4 * adapter + 0.05 * base
    loaded = load_adapters(tmp_path / "adapters", model.unload())
    loaded.save(tmp_path / "again")
    assert size_of(tmp_path / "again") <= 1.05 * (base + 4 * adapter)


def test_temperatures_are_saved(ensemble: Ensemble, tmp_path: Path) -> None:
    scaled = ensemble.with_members(ensemble.members, temperatures=Temperatures(1.5))
    save_adapters(scaled, tmp_path / "saved")
    assert load_adapters(tmp_path / "saved", make_bert()).temperatures == Temperatures(1.5)


def test_usage_is_saved(ensemble: Ensemble, tmp_path: Path) -> None:
    named = ensemble.last(1).with_record(input_spec=InputSpec(classes=("a", "b", "c"), input_shape=(4,)))
    save_adapters(named, tmp_path / "saved")
    assert load_adapters(tmp_path / "saved", make_bert()).input_spec == named.input_spec


def test_a_loaded_ensemble_predicts_after_it_was_made_a_module(saved: Path) -> None:
    loaded = load_adapters(saved, make_bert())
    expected = loaded.predict(INPUTS)
    module = loaded.as_module()
    torch.testing.assert_close(module(**INPUTS), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(loaded.predict(INPUTS), expected)


def test_a_loaded_ensemble_is_saved_again(saved: Path, tmp_path: Path) -> None:
    loaded = load_adapters(saved, make_bert())
    loaded.predict(INPUTS)
    save_adapters(loaded.last(2), tmp_path / "again")
    again = [(folder / WEIGHTS).read_bytes() for folder in adapters_in(tmp_path / "again")]
    assert again == [(folder / WEIGHTS).read_bytes() for folder in adapters_in(saved)[-2:]]


def test_an_ensemble_that_was_there_is_replaced(ensemble: Ensemble, saved: Path) -> None:
    save_adapters(ensemble.last(1), saved)
    assert {file.name for file in saved.iterdir()} == {MANIFEST, *(f.name for f in adapters_in(saved))}
    assert len(load_adapters(saved, make_bert())) == 1


def test_what_a_killed_writer_left_is_replaced(ensemble: Ensemble, tmp_path: Path) -> None:
    (tmp_path / "saved" / "adapter-1-0a1b2c3d").mkdir(parents=True)
    save_adapters(ensemble, tmp_path / "saved")
    assert len([*(tmp_path / "saved").iterdir()]) == 5


def test_an_ordinary_ensemble_and_one_of_adapters_replace_each_other(ensemble: Ensemble, saved: Path) -> None:
    with pytest.raises(StorageError, match=r"found 'pfge-adapters'; use .*peft.load_adapters"):
        Ensemble.load(saved, make_lora)
    ensemble.save(saved)
    assert len(Ensemble.load(saved, make_lora)) == 4
    assert not [*saved.glob("adapter-*")]
    save_adapters(ensemble, saved)
    assert not [*saved.glob("member-*")]


def test_saving_and_loading_use_no_random_numbers(ensemble: Ensemble, tmp_path: Path) -> None:
    base = make_bert()
    before = torch.get_rng_state()
    save_adapters(ensemble, tmp_path / "saved")
    load_adapters(tmp_path / "saved", base)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_adapter_for_another_base_is_refused_and_the_base_is_left_alone(saved: Path) -> None:
    other = make_bert()
    with torch.no_grad():
        other.bert.encoder.layer[0].output.dense.bias[3] += 1e-3
    before = copy_weights(view_weights(other))
    with pytest.raises(StorageError, match=r"a model without a name, and the base .* other weights"):
        load_adapters(saved, other)
    assert_same_weights(view_weights(other), before)
    assert len(load_adapters(saved, other, other_base=True)) == 4


def test_a_new_head_does_not_make_another_base(ensemble: Ensemble, saved: Path) -> None:
    base = make_bert()
    nn.init.zeros_(base.classifier.weight)
    assert torch.equal(load_adapters(saved, base).predict(INPUTS), ensemble.predict(INPUTS))


def test_a_base_that_adapters_do_not_fit_is_refused(saved: Path) -> None:
    with pytest.raises(StorageError, match="a model without a name, which do not fit a Sequential"):
        load_adapters(saved, make_mlp())


def test_a_base_that_has_adapters_already_is_refused(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"got one with adapters; pass model.unload\(\)"):
        load_adapters(saved, make_lora())


def test_a_model_without_adapters_is_refused(tmp_path: Path) -> None:
    plain = Ensemble([view_weights(make_bert())], make_bert)
    with pytest.raises(
        ValueError, match="adapters need a peft model, got a BertForSequenceClassification; let"
    ):
        save_adapters(plain, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_prompt_learning_is_refused(tmp_path: Path) -> None:
    model = make_lora(config=PromptTuningConfig(task_type=TaskType.SEQ_CLS, num_virtual_tokens=2))
    with pytest.raises(ValueError, match=r"got PROMPT_TUNING; use Ensemble.save"):
        save_adapters(Ensemble([view_weights(model)], lambda: model), tmp_path / "saved")


def test_members_that_differ_elsewhere_are_refused(tmp_path: Path) -> None:
    model = make_lora()
    model.base_model.model.bert.pooler.dense.weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"member 1 differs from the model also in .*pooler.*; name its"):
        save_adapters(train(model, FGE(1), 2), tmp_path / "saved")
    assert not (tmp_path / "saved" / MANIFEST).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "must have format 'pfge-adapters', found 'other'"),
        ({"members": [{"folder": "../elsewhere"}]}, "must give file, bytes, sha256, folder, iteration"),
        ({"members": {"a": 1}}, "must list its members, found dict"),
        ({"members": None}, "must list its members, found NoneType"),
        ({"method": 3}, "has an invalid `method`: expected a string or null, got 3"),
        ({"base": [1]}, "must give the name and the sha256 of the adapters' base"),
        ({"base": {"name": {}, "sha256": "0"}}, "must give the name and the sha256 of the adapters' base"),
        ({"adapter_config": None}, "the config of an adapter must be an object, got None"),
        ({"adapter_config": {"peft_type": "NONE"}}, "peft_type must be LORA, got 'NONE'; for other adapters"),
        ({"adapter_config": {"peft_type": ["LORA"]}}, "peft_type must be LORA, got list"),
        ({"task": {"name": "Other", "options": {}}}, "task must be one that this version knows"),
        ({"usage": {"classes": 3}}, "manifest.json has an invalid `usage`: classes must be a list, got 3"),
    ],
)
def test_a_foreign_manifest_is_refused(change: dict[str, Any], message: str, saved: Path) -> None:
    edit_json(saved / MANIFEST, **change)
    with pytest.raises(StorageError, match=message):
        load_adapters(saved, make_bert())


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a connection is opened or a name is looked up."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


HOSTILE: dict[str, dict[str, Any]] = {
    "peft_type": {"peft_type": "SHADOW", "shadow_model": "someone/model"},
    "PROMPT_TUNING": {
        "peft_type": "PROMPT_TUNING",
        "task_type": "SEQ_CLS",
        "num_virtual_tokens": 2,
        "prompt_tuning_init": "TEXT",
        "prompt_tuning_init_text": "text",
        "tokenizer_name_or_path": "someone/tokenizer",
    },
    "megatron_config": {"megatron_config": {}, "megatron_core": "antigravity"},
    "megatron_core": {"megatron_core": "antigravity"},
    "'tokenizer'": {"tokenizer": "someone/tokenizer"},
    "layer_replication": {"layer_replication": [[0, 1]] * 10**4},
    "arrow_config": {"arrow_config": {"top_k": 1}},
    "trainable_token_indices": {"trainable_token_indices": [0]},
    "'x{60}": {"x" * 10**5: 1},
    "modules_to_save, layers_pattern, rank_pattern": {"rank_pattern": {f"a{n}": 1 for n in range(401)}},
}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("named", HOSTILE)
def test_a_config_that_asks_for_more_than_tensors_is_refused_by_name(named: str, saved: Path) -> None:
    config = json.loads((saved / MANIFEST).read_text())["adapter_config"] | HOSTILE[named]
    edit_json(saved / MANIFEST, adapter_config=config)
    base = make_bert()
    before = [name for name, _ in base.named_modules()]
    with pytest.raises(StorageError, match=named.replace("{60}", "+")) as caught:
        load_adapters(saved, base)
    assert len(str(caught.value).replace(str(saved), "")) < 400
    assert [name for name, _ in base.named_modules()] == before


SLOW = "(a+)+$"  # takes exponentially long to not match a name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("target_modules", SLOW),
        ("target_modules", ["query", SLOW]),
        ("exclude_modules", SLOW),
        ("modules_to_save", [SLOW]),
        ("layers_pattern", SLOW),
        ("rank_pattern", {SLOW: 2}),
        ("alpha_pattern", {SLOW: 2}),
        ("target_modules", "a" * 501),
        ("target_modules", ["a"] * 10_001),
    ],
)
def test_regular_expressions_that_repeat_or_group_are_not_matched(field: str, value: Any) -> None:
    config = {"peft_type": "LORA", "r": 2, field: value}
    start = perf_counter()
    with pytest.raises(ValueError, match=f"^{field} of an adapter must be .*, got "):
        read_config(config)
    assert perf_counter() - start < 1


WRONG: dict[str, list[Any]] = {
    "task_type": ["OTHER", 3, ["SEQ_CLS"]],
    "inference_mode": [1, "yes", None],
    "r": [0, -1, 2.0, True, "8", None, 4097, 10**30, [8]],
    "target_modules": [3, {"query": 1}, [["query"]], [None], "", ["q k"], True],
    "exclude_modules": [3, [1]],
    "target_parameters": ["weight", [1]],
    "modules_to_save": ["classifier", [1], 0],
    "lora_alpha": ["16", None, float("nan"), float("inf"), 10**400, True, []],
    "lora_dropout": [-0.1, 1.0, "0", None, float("nan")],
    "fan_in_fan_out": [0, None],
    "bias": ["some", None, True, ["none"]],
    "use_rslora": [1],
    "use_dora": ["true"],
    "lora_bias": [{}],
    "ensure_weight_tying": [0],
    "init_lora_weights": ["eva", "loftq", "pissa_niter_99999999", 1, None, {}],
    "layers_to_transform": [-1, "1", [0.5], True, [10**9]],
    "layers_pattern": [1, [None]],
    "rank_pattern": [[], {"a": 0}, {"a": "2"}, {"a": 10**9}],
    "alpha_pattern": [[], {"a": None}, {"a": float("inf")}],
}


@pytest.mark.parametrize(("field", "value"), [(field, v) for field, wrong in WRONG.items() for v in wrong])
def test_a_field_of_another_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} of an adapter must be .*, got "):
        read_config({"peft_type": "LORA", "target_modules": ["query"], field: value})


def test_every_field_that_may_be_set_is_checked_with_wrong_values() -> None:
    assert WRONG.keys() == ALLOWED.keys()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": r".*layer\.\d+.*\.(query|value)"},
        {"target_modules": ["query", "value", "dense"], "exclude_modules": r".*output.*"},
        {"target_modules": ["query"], "rank_pattern": {"layer.0.attention.self.query": 3}, "use_dora": True},
        {"target_modules": ["query"], "layers_to_transform": [0], "layers_pattern": "layer", "bias": "all"},
    ],
)
def test_adapters_of_other_settings_are_saved_and_loaded(options: dict[str, Any], tmp_path: Path) -> None:
    model = make_lora(config=LoraConfig(task_type=TaskType.SEQ_CLS, r=2, **options))
    ensemble = train(model, FGE(1), 2)
    save_adapters(ensemble, tmp_path / "saved")
    loaded = load_adapters(tmp_path / "saved", make_bert())
    assert torch.equal(loaded.predict_members(INPUTS), ensemble.predict_members(INPUTS))


def test_adapters_that_could_not_be_loaded_are_not_saved(tmp_path: Path) -> None:
    model = make_lora(config=LoraConfig(r=2, target_modules=["query"], rank_pattern={"(query|value)": 3}))
    with pytest.raises(ValueError, match="rank_pattern of an adapter must be for each name a whole number"):
        save_adapters(Ensemble([copy_weights(view_weights(model))], lambda: model), tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_tensors_of_another_shape_are_refused(saved: Path) -> None:
    config = json.loads((saved / MANIFEST).read_text())["adapter_config"] | {"r": 3}
    edit_json(saved / MANIFEST, adapter_config=config)
    with pytest.raises(StorageError, match="must hold the tensors of an adapter for this base"):
        load_adapters(saved, make_bert()).predict(INPUTS)


def test_a_damaged_adapter_is_refused(saved: Path) -> None:
    file = adapters_in(saved)[1] / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(StorageError, match="it is damaged"):
        load_adapters(saved, make_bert())


def test_a_config_is_the_same_in_each_run(ensemble: Ensemble, saved: Path, tmp_path: Path) -> None:
    save_adapters(ensemble, tmp_path / "again")
    configs = {(f / CONFIG).read_text() for f in (*adapters_in(saved), *adapters_in(tmp_path / "again"))}
    assert len(configs) == 1


def test_adapters_are_collected_in_the_trainer(tmp_path: Path) -> None:
    trainer, callback = make_trainer(tmp_path / "run", None, FGE(3), model=make_lora(), learning_rate=0.05)
    trainer.train()
    with pytest.raises(ValueError, match=r"adapters of a PeftModel.*; pass ensemble\(lambda: model\)"):
        callback.ensemble()
    found = callback.ensemble(lambda: trainer.model)
    save_adapters(found, tmp_path / "saved")
    expected: Tensor = found.predict(INPUTS)
    assert torch.equal(load_adapters(tmp_path / "saved", make_bert()).predict(INPUTS), expected)


def test_the_base_may_be_any_module(tmp_path: Path) -> None:
    def base() -> BertForSequenceClassification:
        return make_mlp()

    config = LoraConfig(r=2, target_modules=["0", "4"])
    model = make_lora(base(), config)
    members = [copy_weights(view_weights(model))]
    save_adapters(Ensemble(members, lambda: model), tmp_path / "saved")
    assert len(load_adapters(tmp_path / "saved", base())) == 1


def test_a_trainer_resumes_with_another_random_head_below_the_trained_one(tmp_path: Path) -> None:
    """As of a pretrained base without a head, whose new one is in no checkpoint."""
    options = {"save_strategy": "steps", "save_steps": 6}
    make_trainer(tmp_path, None, FGE(2), model=make_lora(), **options)[0].train()
    base = make_bert()
    nn.init.ones_(base.classifier.weight)
    trainer, callback = make_trainer(tmp_path, None, FGE(2), model=make_lora(base))
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert callback.collectors[0].iterations == [2, 4, 6, 8, 10, 12]
