"""A run beside the paper's numbers, which are checked where the paper's text repeats them."""

import tomllib
from pathlib import Path

import pytest

from pfge.lab.config.toml import load_experiment
from pfge.reports.contents import report_tables
from pfge.reports.run import Run
from pfge.reports.tables.methods import _numbers
from tests.reports.made_run import config, make_run, texts, write_connectivity

CONFIGS = Path(__file__).parents[3] / "configs" / "paper"


def tables_of(folder: Path, data: str, model: str) -> dict[str, list[list[str]]]:
    (folder / "config.toml").write_text(config(seeds=[1, 2], data__name=data, model__name=model))
    return {table.key: texts(table) for table in report_tables(Run(folder))}


def test_the_papers_accuracy_stands_beside_that_of_the_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", methods=["w0", "SWA", "PFGE"])
    assert tables_of(folder, "cifar10", "vgg16")["paper"] == [
        ["SWA", "91.25 ± 0.25", "93.33 ± 0.02"],
        ["FGE", "", "93.40 ± 0.08"],
        ["FGE*", "", "93.03 ± 0.18"],
        ["SWAG", "", "93.37 ± 0.07"],
        ["SWAG*", "", "93.24 ± 0.06"],
        ["PFGE", "93.75 ± 0.25", "93.41 ± 0.08"],
    ]


def test_so_does_its_mode_connectivity(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    write_connectivity(folder)
    found = tables_of(folder, "cifar10", "wideresnet28-10")["paper-connectivity"]
    assert [(row[0], row[2]) for row in found] == [("FGE", "0.084"), ("PFGE", "0.065")]
    assert all(row[1] for row in found)


@pytest.mark.parametrize(("data", "model"), [("digits", "vgg16"), ("cifar10", "resnet20")])
def test_there_is_no_such_table_for_what_is_not_in_the_paper(tmp_path: Path, data: str, model: str) -> None:
    folder = make_run(tmp_path / "run")
    write_connectivity(folder)
    assert not {"paper", "paper-connectivity"} & tables_of(folder, data, model).keys()


def test_every_config_of_the_paper_has_its_numbers() -> None:
    found = set()
    for file in CONFIGS.glob("*.toml"):
        experiment = load_experiment(file)
        found.add((experiment.data.name, experiment.model.name))
    printed = {
        (data, model)
        for data, methods in _numbers()["accuracy"].items()
        for models in methods.values()
        for model in models
    }
    assert found == printed
    assert len(found) == 9


def test_every_method_of_the_paper_has_every_number() -> None:
    for methods in _numbers()["accuracy"].values():
        assert set(methods) == {"PFGE", "FGE*", "SWA", "SWAG*", "FGE", "SWAG"}
        assert len({tuple(models) for models in methods.values()}) == 1
        assert all(50 < mean < 100 and 0 < error < 1 for m in methods.values() for mean, error in m.values())


def test_the_file_is_toml_that_others_can_read() -> None:
    text = (Path(__file__).parents[3] / "src/pfge/reports/tables/paper.toml").read_text()
    assert tomllib.loads(text)["accuracy"]["cifar100"]["PFGE"]["wideresnet28-10"] == [81.96, 0.01]
