"""The hardware an experiment runs on, as one process sees it; test_processes.py has several."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pfge import Trajectory, follow
from pfge.lab.config.settings import ConfigError, EngineSettings
from pfge.lab.engine import Engine
from pfge.lab.models import build_model
from pfge.weights import view_weights
from tests.toys import assert_same_weights, classification_loss, make_batch, make_mlp, make_sgd


def make_engine(**settings: Any) -> Engine:
    return Engine(EngineSettings(**{"accelerator": "cpu", **settings}))


def train(model: nn.Module, step: Callable[[nn.Module, Any], Any], updates: int = 3, **options: Any) -> None:
    torch.manual_seed(0)  # dropout
    trajectory = Trajectory(model, options.pop("optimizer", None) or make_sgd(model), None, [])
    batches = [make_batch(i) for i in range(1, updates + 1)]
    follow(trajectory, batches, step, iterations=updates, **options)


def test_one_process_is_the_first_of_one() -> None:
    engine = make_engine()
    assert (engine.rank_and_world_size, engine.is_first, engine.device) == ((0, 1), True, torch.device("cpu"))


def test_a_model_of_volumes_is_placed_though_torch_has_no_such_format_for_it() -> None:
    model = make_engine(channels_last=True).place(nn.Sequential(nn.Conv3d(1, 2, 3), nn.Conv2d(1, 2, 3)))
    assert all(weight.is_contiguous() for weight in model.parameters())


@pytest.mark.parametrize(
    ("inputs", "expected"), [((1.0, 2.0), 21.0), ({"x": 1.0, "y": 2.0}, 21.0), ({"y": 1.0, "x": 2.0}, 12.0)]
)
def test_inputs_are_the_arguments_of_the_model(inputs: Any, expected: float) -> None:
    class Sum(nn.Module):
        def forward(self, x: float, y: float) -> float:
            return x + 10 * y

    assert make_engine().forward(Sum(), (inputs, None)) == expected


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_model_is_placed_in_the_memory_format_of_the_settings(channels_last: bool) -> None:
    model = make_engine(channels_last=channels_last).place(build_model("small_conv", classes=10, channels=1))
    weight = view_weights(model)["4.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last) is channels_last
    assert weight.is_contiguous() is not channels_last


@pytest.mark.slow
def test_one_process_on_the_cpu_needs_no_fabric() -> None:
    # In a process of its own, as others import Fabric.
    found = subprocess.run(
        [sys.executable, "-c", _SET_UP_AN_ENGINE], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []


_SET_UP_AN_ENGINE = """
import sys
from pfge.lab.config.settings import EngineSettings
from pfge.lab.engine import Engine
import pfge.lab.session
Engine(EngineSettings(accelerator="cpu"))
for name in ("lightning_fabric", "torchmetrics", "matplotlib", "scipy", "timm", "torch._dynamo", "sklearn"):
    if name in sys.modules:
        print(name)
"""


def test_a_launcher_of_several_processes_needs_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Fabric" not in type(make_engine()._fabric).__name__
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert type(make_engine()._fabric).__name__ == "Fabric"


@pytest.mark.parametrize("through_fabric", [False, True])
def test_training_through_the_engine_is_training(
    through_fabric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if through_fabric:
        monkeypatch.setenv("LOCAL_RANK", "0")
    engine, plain, through = make_engine(), make_mlp(), make_mlp()
    train(plain, classification_loss)
    optimizer = make_sgd(through)
    wrapped = engine.wrap(through, optimizer)
    train(
        through,
        lambda _, batch: classification_loss(wrapped, batch),
        optimizer=optimizer,
        backward=engine.backward,
    )
    assert_same_weights(view_weights(through), view_weights(plain))


def test_a_compiled_model_trains_the_weights_it_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    # The eager back end takes the graph as it is: compiling to machine code would take a minute.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    engine, plain, compiled = make_engine(compile=True), make_mlp(), make_mlp()
    train(plain, classification_loss)
    optimizer = make_sgd(compiled)
    wrapped = engine.wrap(compiled, optimizer)
    train(
        compiled,
        lambda _, batch: classification_loss(wrapped, batch),
        optimizer=optimizer,
        backward=engine.backward,
    )
    names = view_weights(plain)
    assert view_weights(compiled).keys() == names.keys()
    torch.testing.assert_close(view_weights(compiled), names)


def test_a_forward_pass_is_in_the_precision_of_the_settings() -> None:
    model = make_mlp().eval()
    batch = make_batch(1)
    assert make_engine().forward(model, batch).dtype == torch.float32
    mixed = make_engine(precision="bf16-mixed").forward(model, batch)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), model(batch[0]), rtol=0.05, atol=0.05)


def test_a_sum_over_one_process_is_its_own_tensor() -> None:
    assert torch.equal(make_engine().sum_over_processes(torch.arange(4.0)), torch.arange(4.0))


def test_the_first_does_what_others_rely_on() -> None:
    done: list[str] = []
    make_engine().on_rank_zero(lambda: done.append("written"))
    assert done == ["written"]


@pytest.mark.parametrize(
    "settings",
    [
        {"accelerator": "quantum"},
        {"devices": "many"},
        {"devices": 0},
        {"strategy": "nope"},
        {"strategy": "deepspeed"},  # not installed
        {"nodes": 0},
    ],
    ids=str,
)
def test_hardware_that_is_not_there_is_a_config_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"the settings in \[engine\] do not fit this machine: .+"):
        make_engine(**settings)


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork", "ddp_notebook"])
def test_a_strategy_whose_processes_call_a_function_is_refused(strategy: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.strategy must .*, got {strategy}; set .*=ddp"):
        make_engine(strategy=strategy, devices=2)


def start_by_torchrun(monkeypatch: pytest.MonkeyPatch, processes: int, on_each_node: int) -> None:
    sizes = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(on_each_node)}
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0", **sizes}.items():
        monkeypatch.setenv(name, value)


def test_one_process_of_torchrun_is_the_first_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    start_by_torchrun(monkeypatch, processes=1, on_each_node=1)
    assert make_engine().rank_and_world_size == (0, 1)


def test_more_processes_of_torchrun_than_the_settings_say_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each would else take itself for the only one."""
    start_by_torchrun(monkeypatch, processes=4, on_each_node=2)
    with pytest.raises(ConfigError) as caught:
        make_engine()
    assert str(caught.value) == (
        "torchrun started 4 processes, got engine.devices = 1 and engine.nodes = 1; set engine.devices=2 and "
        "engine.nodes=2, or start one process without torchrun"
    )
