import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, NAdam, Optimizer

from pfge.lab.config.settings import ConfigError, EnsembleSettings, PretrainSettings
from pfge.lab.experiments.compare import find_all_w0
from pfge.lab.run.progress import Reporter
from pfge.lab.session import open_session
from pfge.lab.training.pretrain import make_optimizer, require_optimizers, try_optimizers
from tests.lab.tiny import Stopped, counted_steps, outcome, run, tiny

HERE = "tests.lab.training.test_optimizers"


def make_nadam(parameters: Any, rate: float) -> Optimizer:
    return NAdam(parameters, lr=rate)


def take_all(parameters: Any, rate: float, momentum: float, weight_decay: float) -> Optimizer:
    return SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay)


def forget(parameters: Any) -> None:
    del parameters


def call_the_rate_lr(parameters: Any, lr: float) -> Optimizer:
    return SGD(parameters, lr=lr)


def draw_a_number(parameters: Any, rate: float) -> Optimizer:
    torch.rand(1)
    return SGD(parameters, lr=rate)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("sgd", SGD, {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.01}),
        ("adamw", AdamW, {"lr": 0.1, "betas": (0.9, 0.999), "weight_decay": 0.01}),
        (f"{HERE}:make_nadam", NAdam, {"lr": 0.1, "weight_decay": 0}),
        (f"{HERE}:take_all", SGD, {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.01}),
    ],
)
@pytest.mark.parametrize("settings", [PretrainSettings, EnsembleSettings])
def test_the_named_optimizer_has_the_settings_that_it_takes(
    settings: Any, name: str, kind: type[Optimizer], expected: dict[str, Any]
) -> None:
    model = nn.Linear(3, 2)
    made = make_optimizer(model, settings(optimizer=name, momentum=0.8, weight_decay=0.01), rate=0.1)
    assert type(made) is kind
    (group,) = made.param_groups
    assert {key: group[key] for key in expected} == expected
    assert group["params"] == [model.weight, model.bias]


def test_a_function_that_makes_no_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r":forget' must return a torch.optim.Optimizer, got NoneType"):
        make_optimizer(nn.Linear(1, 1), EnsembleSettings(optimizer=f"{HERE}:forget"), rate=0.1)


def test_a_function_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(ConfigError, match=r"optimizer 'no_such.module:make' cannot be imported"):
        make_optimizer(nn.Linear(1, 1), EnsembleSettings(optimizer="no_such.module:make"), rate=0.1)


def test_a_function_that_needs_something_else_is_refused_with_what_it_may_take() -> None:
    name = f"{HERE}:call_the_rate_lr"
    expected = (
        f"optimizer {name!r} must accept the parameters, and require no other arguments than rate, "
        "momentum and weight_decay, but missing a required argument: 'lr'; rename its arguments, or give "
        "them defaults"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(expected)}$"):
        make_optimizer(nn.Linear(1, 1), EnsembleSettings(optimizer=name), rate=0.1)


WRONG = [f"{HERE}:no_such_function", f"{HERE}:call_the_rate_lr"]


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("key", ["pretrain.optimizer", "ensemble.optimizer"])
def test_a_wrong_function_leaves_no_run_and_may_be_corrected(tmp_path: Path, key: str, name: str) -> None:
    few = "ensemble.methods=['SWA']"
    with pytest.raises(ConfigError, match=re.escape(name)):
        run(tiny(few, f"{key}={name}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run(tiny(few, f"{key}=adamw"), tmp_path / "run")


def test_a_wrong_function_is_refused_before_workers_train_w0(tmp_path: Path) -> None:
    experiment = tiny(f"ensemble.optimizer={WRONG[0]}", "engine.launcher=here:2")
    with pytest.raises(ConfigError, match="cannot be imported"):
        find_all_w0([(experiment, tmp_path / "run")], Reporter(quiet=True))
    assert not (tmp_path / "run").exists()


def test_a_function_that_makes_no_optimizer_is_refused_before_w0_is_trained(tmp_path: Path) -> None:
    with counted_steps() as steps, pytest.raises(ConfigError, match="must return a torch"):
        run(tiny(f"ensemble.optimizer={HERE}:forget"), tmp_path)
    assert steps == [0]


@pytest.mark.parametrize("start", ["pretrain.epochs=0", "pretrain.weights=w0.safetensors"])
def test_the_optimizer_of_a_w0_that_is_not_trained_is_not_asked_for(start: str) -> None:
    require_optimizers(tiny(start, f"pretrain.optimizer={WRONG[0]}"))


def test_a_finished_run_is_shown_without_its_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny("ensemble.methods=['SWA']", f"ensemble.optimizer={HERE}:take_all")
    results = run(experiment, tmp_path)
    monkeypatch.delattr(f"{HERE}.take_all")
    assert run(experiment, tmp_path) == results


def test_trying_an_optimizer_leaves_the_random_numbers(tmp_path: Path) -> None:
    experiment = tiny(f"ensemble.optimizer={HERE}:draw_a_number")
    with open_session(experiment, tmp_path, Reporter(quiet=True)) as session:
        before = torch.get_rng_state()
        try_optimizers(session)
        assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("key", ["pretrain.optimizer", "ensemble.optimizer"])
def test_an_unknown_name_is_refused_with_what_is_allowed(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} must be sgd, adamw or a function, .* got 'adam'"):
        tiny(f"{key}=adam")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", f"{HERE}:make_nadam"])
def test_a_run_of_another_optimizer_resumes_bit_for_bit(tmp_path: Path, name: str) -> None:
    experiment = tiny(
        f"pretrain.optimizer={name}",
        f"ensemble.optimizer={name}",
        "pretrain.rate=0.001",
        "ensemble.high=0.001",
        "ensemble.methods=['SWA','PFGE']",
        "engine.checkpoint_seconds=0",
    )
    run(experiment, tmp_path / "whole")
    for stop in (4, 13, 16):  # steps of w0, of the shared path, of PFGE's own
        with counted_steps(stop), pytest.raises(Stopped):
            run(experiment, tmp_path / "stopped")
    run(experiment, tmp_path / "stopped")
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_a_functions_sgd_is_the_built_in_one(tmp_path: Path) -> None:
    few = "ensemble.methods=['PFGE']"
    run(tiny(few), tmp_path / "built-in")
    run(
        tiny(few, *(f"{phase}.optimizer={HERE}:take_all" for phase in ("pretrain", "ensemble"))),
        tmp_path / "own",
    )
    assert outcome(tmp_path / "own") == outcome(tmp_path / "built-in")
