"""Inputs of unknown kinds: pictures of other folders, made as large as the data's own."""

from pathlib import Path

import pytest

from pfge.lab.data import Normalization, Splits
from pfge.lab.evaluation.robustness import assess
from pfge.lab.run.progress import Reporter
from pfge.lab.session import open_session
from pfge.weights import view_weights
from tests.lab.data.made import random_images, write_pictures
from tests.lab.tiny import tiny


def small_pictures() -> Splits:
    """Pictures that are not from folders."""
    images = random_images(12, height=12, width=12)
    return Splits(
        train=images,
        validation=images.select([]),
        test=images,
        normalization=Normalization((0.5,) * 3, (0.5,) * 3),
    )


@pytest.mark.parametrize(
    "ours",
    [
        ["data.name=folder:PETS", "data.image_size=12"],
        ["data.name=stream:PETS", "data.image_size=12"],
        ["data.name=folder:PETS"],  # its own default size
        ["data.name=tests.lab.evaluation.test_robustness:small_pictures"],
    ],
)
@pytest.mark.parametrize("kind", ["folder", "stream"])
def test_unknown_pictures_from_folders_get_the_size_of_the_data(
    tmp_path: Path, ours: list[str], kind: str
) -> None:
    for folder in ("pets/cat", "pets/dog", "plants/oak", "plants/elm"):
        write_pictures(tmp_path / folder, 5)
    settings = [setting.replace("PETS", str(tmp_path / "pets")) for setting in ours]
    experiment = tiny(*settings, "data.batch_size=2")
    with open_session(experiment, tmp_path / "run", Reporter(quiet=True)) as session:
        ensemble = session.make_ensemble([view_weights(session.build_model())])
        unknown = f"{kind}:{tmp_path / 'plants'}"
        assert assess(session, ensemble, ood=[unknown]).ood[unknown].images == 2
