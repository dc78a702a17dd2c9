"""The data of an experiment, split as its settings say."""

import warnings
from dataclasses import replace

from pfge.lab.config.schema import ConfigError, DataSettings
from pfge.lab.data import ImageSet, Normalization, Splits, halve_test, load_data, take


def load_splits(settings: DataSettings) -> Splits:
    """Return the data sets of an experiment, each cut to the number of examples that it asks for.

    Raises:
        ConfigError: The settings ask for what the data does not have.
    """
    seed = settings.split_seed
    splits = load_data(
        settings.name,
        root=settings.root_folder,
        validation=settings.validation,
        seed=seed,
        download=settings.download,
        verify=settings.verify,
        image_size=settings.image_size or None,
        workers=settings.workers,
        normalization=Normalization(settings.mean, settings.std) if settings.mean else None,
    )
    if splits.normalization is None and (settings.crop_padding or settings.flip):
        raise ConfigError(
            f"data.crop_padding and data.flip are for pictures, and data.name = {settings.name!r} has none; "
            "leave them out"
        )
    if settings.crop_padding and not isinstance(splits.train, ImageSet):
        warnings.warn(
            "training makes no use of data.crop_padding for pictures that are not in memory, which have "
            f"random parts anyway, got {settings.crop_padding} with data.name = {settings.name!r}; only TTA "
            "uses it, so leave it out otherwise",
            stacklevel=2,
        )
    if settings.halve_test and len(splits.validation):
        warnings.warn(
            "data.halve_test makes validation data of the test data, so the other "
            f"{len(splits.validation):,} validation examples are not used at all; set data.validation to 0, "
            "or data.halve_test to false",
            stacklevel=2,
        )
    train = take(splits.train, settings.train_images, seed, part="training data")
    if not settings.halve_test:
        test = take(splits.test, settings.test_images, seed, part="test data")
        return replace(splits, train=train, test=test)
    # Halved before taking fewer, so that an image is in the same half in small and in full runs.
    validation, test = (
        take(half, settings.test_images, seed, part="half of the test data")
        for half in halve_test(splits.test, seed)
    )
    return replace(splits, train=train, validation=validation, test=test)
