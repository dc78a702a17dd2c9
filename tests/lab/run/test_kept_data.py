"""A run refuses data that is not its own any more."""

from pathlib import Path

import pytest

from pfge import StorageError
from pfge.cli.main import main
from pfge.lab.config.settings import Experiment
from pfge.lab.run.progress import Reporter
from pfge.lab.session import open_session
from pfge.storage.files import read_json_object
from tests.lab.data.made import write_pictures
from tests.lab.tiny import run, tiny


def of_folder(pictures: Path) -> Experiment:
    return tiny(
        f"data.name=folder:{pictures}", "data.image_size=8", "data.batch_size=20", "ensemble.methods=['SWA']"
    )


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for seed, name in enumerate("ab"):
        write_pictures(tmp_path / "pictures" / name, 50, width=8, height=8, seed=seed)
    return tmp_path / "pictures"


def test_pictures_added_after_a_run_are_refused(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    run(of_folder(pictures), folder)
    ensemble = str(folder / "seed-1" / "ensembles" / "SWA")
    evaluate = ["evaluate", ensemble, "--set", f"data.name=folder:{pictures}"]
    assert main(evaluate) == 0
    write_pictures(pictures / "a", 250, width=8, height=8, seed=3)
    capsys.readouterr()
    assert main(evaluate) == 2
    message = capsys.readouterr().err
    assert "was made with other data; training data: 80 images then, 240 now; " in message
    assert "test data: 20 images then, 60 now; " in message
    assert len(message.splitlines()) == 1
    with pytest.raises(StorageError, match="was made with other data"):
        run(of_folder(pictures), folder)


def test_other_data_that_the_user_asks_for_is_no_change(tmp_path: Path, pictures: Path) -> None:
    folder = tmp_path / "run"
    run(of_folder(pictures), folder)
    other = tmp_path / "other"
    pictures.rename(other)
    ensemble = str(folder / "seed-1" / "ensembles" / "SWA")
    write_pictures(other / "a", 60, width=8, height=8)
    assert main(["evaluate", ensemble, "--set", f"data.name=folder:{other}"]) == 0


def test_a_run_from_before_fingerprints_still_works_and_gets_none(tmp_path: Path, pictures: Path) -> None:
    folder = tmp_path / "run"
    run(of_folder(pictures), folder)
    (folder / "data.json").unlink()
    write_pictures(pictures / "a", 60, width=8, height=8)
    run(of_folder(pictures), folder)
    assert not (folder / "data.json").exists()


def test_a_run_killed_before_it_kept_its_data_keeps_it_later(tmp_path: Path) -> None:
    for _ in range(2):
        with open_session(tiny(), tmp_path, Reporter(quiet=True)):
            kept = read_json_object(tmp_path / "data.json")
            assert [part["count"] for part in kept.values()] == [1000, 0, 797]
        (tmp_path / "data.json").unlink()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"train": {"unit": "images", "count": "many"}}'])
def test_a_damaged_fingerprint_is_an_error_that_names_the_file(tmp_path: Path, text: str) -> None:
    with open_session(tiny(), tmp_path, Reporter(quiet=True)):
        pass
    (tmp_path / "data.json").write_text(text)
    with (
        pytest.raises(StorageError, match=r"data\.json must"),
        open_session(tiny(), tmp_path, Reporter(quiet=True)),
    ):
        pass
