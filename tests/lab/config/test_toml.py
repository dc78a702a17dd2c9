"""An experiment and its TOML file: what is not allowed is named, and what is written is read back."""

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfge.lab.config.settings import ConfigError, EnsembleSettings, Experiment, ModelSettings
from pfge.lab.config.toml import differences, load_experiment, to_toml
from pfge.methods import TrainingPlan
from pfge.storage.files import is_sealed_text, seal_text
from pfge.tasks import KNOWN, Classification
from tests.tasks.fractions import Fractions


def written(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_experiment(None, overrides)
    return str(caught.value)


# What is read


def test_without_a_file_every_setting_has_its_default() -> None:
    assert load_experiment(None) == Experiment()


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    path = written(tmp_path, 'seeds = [4, 5]\n[ensemble]\nhigh = 0.2\nmethods = ["PFGE"]\n')
    ensemble = dataclasses.replace(EnsembleSettings(), high=0.2, methods=("PFGE",))
    assert load_experiment(path) == dataclasses.replace(Experiment(), seeds=(4, 5), ensemble=ensemble)


def test_a_whole_number_is_a_fine_number() -> None:
    cycle = load_experiment(None, ["ensemble.cycle=3"]).ensemble.cycle
    assert cycle == 3.0
    assert type(cycle) is float


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("0.25", 0.25)])
def test_validation_is_a_number_of_images_or_a_share(text: str, value: int | float) -> None:
    validation = load_experiment(None, [f"data.validation={text}"]).data.validation
    assert validation == value
    assert type(validation) is type(value)


def test_options_of_a_model_may_be_anything() -> None:
    model = load_experiment(None, ["model.options.dropout=0.3", 'model.options.norm={kind="group"}']).model
    assert model.options == {"dropout": 0.3, "norm": {"kind": "group"}}


def test_a_task_is_named_in_any_case_with_its_options(fractions: Fractions) -> None:
    assert load_experiment(None).task.make() is None
    for name in ("classification", "Classification"):
        assert load_experiment(None, [f"task.name={name}"]).task.make() == Classification()
    named = load_experiment(None, ["task.name=fractions", "task.options.places=2"])
    assert named.task.make() == replace(fractions, places=2)


def test_a_task_that_is_not_known_is_named_with_those_that_are(fractions: Fractions) -> None:  # noqa: ARG001
    known = ", ".join(name.lower() for name in KNOWN)
    assert refused("task.name=ranking") == f"task.name must be one of {known}, got 'ranking'"
    assert refused("task.name=fractions", "task.options.sides=3") == (
        "task.options of fractions are places, got 'sides'"
    )
    assert refused("task.options.places=3") == (
        "task.options need a task.name that takes them, got {'places': 3}"
    )


def test_a_setting_that_was_renamed_is_read_from_the_files_of_earlier_versions(tmp_path: Path) -> None:
    path = written(tmp_path, seal_text("[data]\nhalve_test = true\nflip = true\n"))
    data = load_experiment(path).data
    assert data.validation_from_test
    assert data.flip
    assert "halve_test" not in to_toml(load_experiment(path))
    both = written(tmp_path, "[data]\nhalve_test = true\nvalidation_from_test = false\n")
    with pytest.raises(ConfigError, match=r"data\.validation_from_test now, and the config has both"):
        load_experiment(both)


def test_a_setting_that_was_renamed_is_refused_in_an_override_with_its_new_name() -> None:
    assert refused("data.halve_test=true") == (
        "data.halve_test is called data.validation_from_test now; write data.validation_from_test=true"
    )


# What is overridden


def test_an_override_beats_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[ensemble]\nhigh = 0.2\nlow = 0.1\n")
    ensemble = load_experiment(path, ["ensemble.high=0.3"]).ensemble
    assert (ensemble.low, ensemble.high) == (0.1, 0.3)


def test_the_last_override_of_a_setting_counts() -> None:
    assert load_experiment(None, ["ensemble.high=0.3", "ensemble.high=0.4"]).ensemble.high == 0.4


@pytest.mark.parametrize("text", ["name=mine", 'name="mine"', "name = mine "])
def test_a_word_needs_no_quotes(text: str) -> None:
    assert load_experiment(None, [text]).name == "mine"


def test_a_value_may_hold_an_equals_sign() -> None:
    assert load_experiment(None, ["data.root=/data/a=b"]).data.root == "/data/a=b"


def test_an_override_without_an_equals_sign_is_refused() -> None:
    assert refused("ensemble.high") == (
        "an override is written key=value, got 'ensemble.high'; for example ensemble.high=0.1"
    )


def test_an_override_below_a_value_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, 'name = "mine"\n')
    with pytest.raises(ConfigError, match=r"'name\.x' is not a setting: name is not a table"):
        load_experiment(path, ["name.x=1"])


# What is refused: the key, the value, and what is allowed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("esemble.high=1", "esemble is not a setting; did you mean ensemble? allowed: name, seeds, data"),
        ("ensemble.hihg=1", "ensemble.hihg is not a setting; did you mean ensemble.high? allowed: methods,"),
        ("data.zzz=1", "data.zzz is not a setting; allowed: name, root,"),
        ("ensemble.high=big", "ensemble.high must be a number, got 'big'"),
        ("ensemble.high=true", "ensemble.high must be a number, got True"),
        ("data.batch_size=1.5", "data.batch_size must be a whole number, got 1.5"),
        ("data.batch_size=true", "data.batch_size must be a whole number, got True"),
        ("data.flip=1", "data.flip must be true or false, got 1"),
        ("data.name=7", "data.name must be a string, got 7"),
        ("data.validation=few", "data.validation must be a whole number or a number, got 'few'"),
        ("engine.devices=1.5", "engine.devices must be a whole number or a string, got 1.5"),
        ("data.split_seed=9223372036854775808", "data.split_seed must be a number of at most 64 bits, got"),
        (f"model.options.width=0x{'f' * 5000}", "must be a number of at most 64 bits, got one of 20,000"),
        ("seeds=3", "seeds must be a list, got 3"),
        ("seeds=[1,'two']", "seeds[1] must be a whole number, got 'two'"),
        ("ensemble=5", "ensemble must be a table, got 5"),
        ("model.options=5", "model.options must be a table, got 5"),
        ("ensemble.unit=weeks", "ensemble.unit must be one of 'epochs', 'iterations', got 'weeks'"),
        ("ensemble.variant=other", "ensemble.variant must be one of 'paper', 'reference', got 'other'"),
        (
            "ensemble.average_start=true",
            "ensemble.average_start must be one of 'variant', 'yes', 'no', got True",
        ),
        (
            "engine.precision=16",
            "engine.precision must be one of '32-true', 'bf16-mixed', 'bf16-true', got 16",
        ),
        (
            "ensemble.methods=['PFGE','DE']",
            "ensemble.methods must be among SWA, EMA, FGE, FGE*, SWAG, SWAG*, PFGE, Snapshot, Star, Cosine, "
            "MCDropout, TTA, DeepEnsemble, got 'DE'",
        ),
        ("seeds=[]", "seeds must be one or more different numbers, got []"),
        ("seeds=[1,2,1]", "seeds must be one or more different numbers, got [1, 2, 1]"),
        ("data.batch_size=0", "data.batch_size must be above 0 and finite, got 0"),
        ("data.evaluation_batch_size=-1", "data.evaluation_batch_size must be above 0 and finite, got -1"),
        ("pretrain.epochs=-1", "pretrain.epochs must be at least 0 and finite, got -1"),
        ("ensemble.cycle=0", "ensemble.cycle must be above 0 and finite, got 0"),
        ("ensemble.cycle=nan", "ensemble.cycle must be above 0 and finite, got nan"),
        ("ensemble.length=inf", "ensemble.length must be above 0 and finite, got inf"),
        ("ensemble.momentum=-0.1", "ensemble.momentum must be at least 0 and finite, got -0.1"),
        ("pretrain.weight_decay=nan", "pretrain.weight_decay must be at least 0 and finite, got nan"),
        ("data.batch_norm_images=-1", "data.batch_norm_images must be at least 0 and finite, got -1"),
        ("engine.checkpoint_seconds=-1", "engine.checkpoint_seconds must be at least 0 and finite, got -1"),
        ("engine.timeout=0", "engine.timeout must be above 0 and finite, got 0"),
        ("ensemble.low=-1", "ensemble.low and ensemble.high must satisfy 0 <= low <= high"),
        ("ensemble.low=0.2", "got 0.2 and 0.05"),
        ("ensemble.high=inf", "got 0.0005 and inf"),
        ("ensemble.high=nan", "got 0.0005 and nan"),
        ("ensemble.period=1", "ensemble must have cycle <= period <= length, got 2.0, 1.0 and 40.0"),
        ("ensemble.length=9", "ensemble must have cycle <= period <= length, got 2.0, 10.0 and 9.0"),
        ("connect.points=1", "connect.points must be at least 2, the ends, got 1"),
        ("margins.nll=0", "margins.nll must be above 0 and finite, got 0"),
        ("connect.bends=0", "connect.bends must be above 0 and finite, got 0"),
        ("connect.images=-1", "connect.images must be at least 0 and finite, got -1"),
        ("data.validation=inf", "data.validation must be at least 0 and finite, got inf"),
        ("data.validation=nan", "data.validation must be at least 0 and finite, got nan"),
        ("data.mean=[0.5]", "data.mean and data.std go together, got (0.5,) and ()"),
    ],
)
def test_what_is_not_allowed_is_named(override: str, message: str) -> None:
    assert message in refused(override)


def test_swag_without_two_points_is_refused_before_anything_is_trained() -> None:
    message = refused("ensemble.cycle=10", "ensemble.period=10", "ensemble.length=10")
    assert "at least 2 cycles, as SWAG needs a point of each, got 10.0 with a cycle of 10.0" in message


def test_one_point_is_enough_for_the_other_methods() -> None:
    overrides = ["ensemble.cycle=10", "ensemble.length=10", "ensemble.methods=['SWA','FGE','PFGE']"]
    assert load_experiment(None, overrides).ensemble.length == 10.0


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config file .*none\.toml does not exist; give the path"):
        load_experiment(tmp_path / "none.toml")


def test_a_file_that_is_no_toml_is_named_with_the_place(tmp_path: Path) -> None:
    path = written(tmp_path, "seeds = [1,\nname = 3\n")
    with pytest.raises(ConfigError, match=r"experiment\.toml must be TOML: .*line 2"):
        load_experiment(path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"experiment\.toml must be TOML"):
        load_experiment(path)


# Epochs and iterations


@pytest.mark.parametrize(
    ("unit", "per_epoch", "expected"),
    [("epochs", 391, (15640, 782, 3910)), ("iterations", 391, (40, 2, 10))],
)
def test_a_setting_is_in_iterations(unit: Any, per_epoch: int, expected: tuple[int, int, int]) -> None:
    setting = dataclasses.replace(EnsembleSettings(), unit=unit).setting(per_epoch)
    assert (setting.iterations, setting.cycle, setting.period) == expected


def test_part_of_an_epoch_is_rounded_to_iterations_and_is_one_at_least() -> None:
    ensemble = dataclasses.replace(EnsembleSettings(), cycle=0.01, period=0.5, length=1.26)
    setting = ensemble.setting(20)
    assert (setting.cycle, setting.period, setting.iterations) == (1, 10, 25)


def test_a_setting_has_everything_else_as_it_is() -> None:
    ensemble = dataclasses.replace(
        EnsembleSettings(),
        unit="iterations",
        low=0.1,
        high=0.2,
        variant="reference",
        average_start="yes",
        clear_momentum=False,
    )
    assert ensemble.setting(7) == TrainingPlan(
        iterations=40,
        cycle=2,
        period=10,
        low=0.1,
        high=0.2,
        variant="reference",
        average_start=True,
        clear_momentum=False,
    )


@pytest.mark.parametrize(("text", "value"), [("variant", None), ("yes", True), ("no", False)])
def test_whether_the_start_is_averaged_may_be_left_to_the_variant(text: Any, value: bool | None) -> None:
    ensemble = dataclasses.replace(EnsembleSettings(), average_start=text)
    assert ensemble.setting(1).average_start is value


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["connect.length=2.5"], 50),
        (["connect.length=0.001"], 1),
        (["connect.length=7", "connect.unit=iterations"], 7),
    ],
)
def test_the_length_of_a_curves_fit_is_in_iterations(overrides: list[str], expected: int) -> None:
    assert load_experiment(None, overrides).connect.iterations(20) == expected


# There and back


def test_the_default_experiment_survives_being_written(tmp_path: Path) -> None:
    assert load_experiment(written(tmp_path, to_toml(Experiment()))) == Experiment()


NUMBERS = st.floats(min_value=1e-12, max_value=1e12)
PLAIN = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(
    name=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=40),
    model=st.text(),
    seeds=st.lists(st.integers(0, 2**40), min_size=1, unique=True),
    mean=st.lists(NUMBERS, max_size=3),
    rate=NUMBERS,
    flip=st.booleans(),
    devices=st.integers(1, 9) | st.text(),
    options=st.dictionaries(st.text(), PLAIN, max_size=3),
)
def test_every_experiment_survives_being_written(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    model: str,
    seeds: list[int],
    mean: list[float],
    rate: float,
    flip: bool,
    devices: int | str,
    options: dict[str, Any],
) -> None:
    default = Experiment()
    experiment = dataclasses.replace(
        default,
        name=name,
        seeds=tuple(seeds),
        data=dataclasses.replace(default.data, mean=tuple(mean), std=tuple(mean), flip=flip),
        model=ModelSettings(model, options),
        pretrain=dataclasses.replace(default.pretrain, rate=rate),
        engine=dataclasses.replace(default.engine, devices=devices),
    )
    path = written(tmp_path_factory.mktemp("config"), to_toml(experiment))
    assert load_experiment(path) == experiment
    assert differences(load_experiment(path), experiment) == []


def test_an_option_that_toml_has_and_a_run_cannot_keep_is_refused() -> None:
    experiment = load_experiment(None, ["model.options.since=2023-08-10"])
    with pytest.raises(ConfigError, match=r"got datetime\.date\(2023, 8, 10\)"):
        to_toml(experiment)


# Another config


def test_what_would_give_other_results_is_told_with_both_values() -> None:
    old, new = Experiment(), load_experiment(None, ["ensemble.high=0.1", "seeds=[1]", "data.name=mnist"])
    assert sorted(differences(old, new)) == [
        'data.name = "mnist" (was "digits")',
        "ensemble.high = 0.1 (was 0.05)",
        "seeds = [1] (was [1, 2, 3])",
    ]


@pytest.mark.parametrize(
    "override",
    [
        "data.root=/elsewhere",
        "data.download=true",
        "data.workers=3",
        "engine.checkpoint_seconds=1",
        "engine.timeout=60",
        "engine.launcher=here:2",
        "connect.rate=0.5",
        "margins.points=0.5",
    ],
)
def test_what_cannot_change_results_is_no_difference(override: str) -> None:
    assert differences(Experiment(), load_experiment(None, [override])) == []


def test_a_config_that_states_its_digest_must_have_it(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    experiment = load_experiment(None, ["ensemble.cycle=4"])
    file.write_text(seal_text(to_toml(experiment)))
    assert is_sealed_text(file.read_text())
    assert load_experiment(file) == experiment
    whole = file.read_text()
    for damaged in (
        whole.replace("cycle = 4", "cycle = 5"),
        whole.replace("cycle = 4", "cycle = 5").replace("sha256", "sha255", 1),
        whole[:-20],
        whole.replace("[data]", "# [data]"),
    ):
        file.write_text(damaged)
        with pytest.raises(ConfigError, match=r"config\.toml (is not as it was written|must be TOML)"):
            load_experiment(file)
    _, _, edited = whole.replace("cycle = 4", "cycle = 5").partition("\n")
    file.write_text(edited)
    assert load_experiment(file).ensemble.cycle == 5


@pytest.mark.parametrize("text", ["", "# sh"])
def test_a_config_without_any_setting_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match="has no setting; it may be truncated"):
        load_experiment(tmp_path / "config.toml")
