"""Several runs in one table."""

import json
from pathlib import Path

from pfge.reports.run import Run
from pfge.reports.tables.methods import name_runs, runs_table
from pfge.reports.tables.table import is_best
from tests.reports.made_run import config, heads, make_run, metrics, result, texts, write_results


def test_methods_of_all_runs_stand_side_by_side(tmp_path: Path) -> None:
    one = Run(make_run(tmp_path / "one", methods=["w0", "PFGE"]))
    other = Run(make_run(tmp_path / "other", seeds=[2], methods=["w0", "SWA"]))
    table = runs_table({"one": one, "other": other})
    assert table is not None
    assert heads(table) == ["method", "run", "seeds", "members", "memory", "accuracy %", "NLL", "ECE %"]
    assert [cells[:6] for cells in texts(table)] == [
        ["w0", "one", "2", "1", "1x", "90.25 ± 0.25"],
        ["w0", "other", "1", "1", "1x", "90.50"],
        ["SWA", "other", "1", "1", "1x", "91.50"],
        ["PFGE", "one", "2", "4", "4x", "93.75 ± 0.25"],
    ]
    best = [row.cells[1] for row in table.rows if getattr(row.cells[5], "best", False)]
    assert [str(cell) for cell in best] == ["one"]


def test_runs_without_results_are_named_and_one_alone_has_no_table(tmp_path: Path) -> None:
    runs = {
        "whole": Run(make_run(tmp_path / "whole")),
        "also": Run(make_run(tmp_path / "also")),
        "empty": Run(make_run(tmp_path / "empty", methods=[])),
    }
    table = runs_table(runs)
    assert table is not None
    assert table.note("").endswith("No results yet: empty.")
    assert runs_table({name: runs[name] for name in ("whole", "empty")}) is None


def test_runs_of_one_name_are_told_by_their_folders(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name) for name in ("a", "b")]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.toml").write_text(config().replace('"made"', json.dumps("other")))
    write_results(tmp_path / "c", [result("w0", 1)])
    runs = [*map(Run, paths), Run(tmp_path / "c"), Run(paths[0])]
    assert list(name_runs(runs)) == [
        f"made ({paths[0]})",
        f"made ({paths[1]})",
        "other",
        f"made ({paths[0]}), again",
    ]


def test_the_best_of_runs_is_that_of_shared_seeds(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", methods=["w0"], examples=0)
    write_results(one, [result("w0", 1) | {"test": metrics(0.8, 0.4)}, result("w0", 2)])
    other = make_run(tmp_path / "other", seeds=[2], methods=["w0"], examples=0)
    write_results(other, [result("w0", 2) | {"test": metrics(0.904, 0.5)}])
    table = runs_table({"one": Run(one), "other": Run(other)})
    assert table is not None
    # On seed 2, 90.5 against 90.4; over all seeds, 85.25 against 90.4.
    assert [str(row.cells[1]) for row in table.rows if is_best(row.cells[5])] == ["one"]
    assert "; X; ranked by seed 2, which all methods have; " in table.note("X")
