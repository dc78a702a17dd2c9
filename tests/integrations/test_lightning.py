from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from torch import Tensor, nn

from pfge import EMA, FGE, PFGE, SWA, Constant, Ensemble, load_weights, refresh_batch_norm
from pfge.collectors import RunningMean
from pfge.integrations.lightning import CollectWeights
from pfge.storage import StorageError
from pfge.weights import buffer_names, copy_weights, view_weights
from tests.integrations.adapters import StatefulLoader
from tests.integrations.lightning_classifier import Classifier
from tests.toys import assert_same_weights, classification_loss, make_batch, make_mlp

INPUTS = make_batch(0)[0]


def batches() -> StatefulLoader:
    return StatefulLoader([make_batch(number) for number in range(6)])


class PlainClassifier(Classifier):
    """A user's module that does not say how it was made."""

    def __init__(self, net: nn.Module):
        pl.LightningModule.__init__(self)
        self.net = net

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class GivenClassifier(PlainClassifier):
    """A user's module that was made of another, which is one of its hyperparameters."""

    def __init__(self, net: nn.Module):
        super().__init__(net)
        self.save_hyperparameters()


def make_trainer(*callbacks: pl.Callback, trainer: type = pl.Trainer, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "max_epochs": 1}
    return trainer(callbacks=list(callbacks), **(quiet | options))


def test_an_ensemble_is_made_from_hparams_saved_and_loaded(tmp_path: Path) -> None:
    callback = CollectWeights(Constant(0.05), [PFGE(1, 2)])
    make_trainer(callback).fit(Classifier(5), batches())
    ensemble = callback.ensemble()
    assert ensemble.iterations == [2, 4, 6]
    assert ensemble.model == "tests.integrations.lightning_classifier:Classifier"
    ensemble.save(tmp_path / "saved")
    loaded = Ensemble.load(tmp_path / "saved", lambda: Classifier(5))
    assert torch.equal(loaded.predict(INPUTS), ensemble.predict(INPUTS))


def test_a_module_without_hparams_needs_build_model() -> None:
    callback = CollectWeights(None, [FGE(1)])
    make_trainer(callback).fit(PlainClassifier(nn.Linear(4, 3)), batches())
    with pytest.raises(
        ValueError, match=r"PlainClassifier cannot be constructed .*; call save_hyperparameters"
    ):
        callback.ensemble().predict(INPUTS)
    ensemble = callback.ensemble(lambda: PlainClassifier(nn.Linear(4, 3)))
    assert ensemble.predict(INPUTS).shape == (16, 3)


class OfOneArgument(PlainClassifier):
    """A user's module whose constructor takes all hyperparameters as one."""

    def __init__(self, config: dict[str, int]):
        super().__init__(nn.Linear(4, config["width"]))
        self.save_hyperparameters(config)


class OfAnyArguments(PlainClassifier):
    """A user's module whose constructor names no argument."""

    def __init__(self, **sizes: int):
        super().__init__(nn.Linear(4, sizes["width"]))
        self.save_hyperparameters()


class Notes(Classifier):
    """A user's module with a hyperparameter that its constructor does not take."""

    def __init__(self, width: int):
        super().__init__(width)
        self.hparams["steps"] = 99


@pytest.mark.parametrize(
    "make",
    [
        lambda: OfOneArgument({"width": 3}),
        lambda: OfAnyArguments(width=3),
        lambda: Notes(width=5),
    ],
    ids=["one argument", "any arguments", "more than the arguments"],
)
def test_a_module_is_constructed_where_lightning_can_load_it(make: Any, tmp_path: Path) -> None:
    callback = CollectWeights(None, [FGE(6)])
    module = make()
    trainer = make_trainer(callback)
    trainer.fit(module, batches())
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    loaded = type(module).load_from_checkpoint(tmp_path / "state.ckpt", weights_only=False).eval()
    with torch.no_grad():
        expected = loaded(INPUTS).softmax(dim=-1)
    assert torch.equal(callback.ensemble().predict(INPUTS), expected)


@pytest.mark.parametrize("kind", [Classifier, OfAnyArguments])
def test_what_the_cli_adds_to_hparams_is_left_out(kind: type[Any]) -> None:
    callback = CollectWeights(None, [FGE(1)])
    module = kind(width=3)
    module.hparams["_instantiator"] = "lightning.pytorch.cli.instantiate_module"
    make_trainer(callback).fit(module, batches())
    assert "_instantiator" not in callback.ensemble().build_model().hparams


@pytest.mark.filterwarnings("ignore:Attribute 'net' is an instance of `nn.Module`")
def test_predicting_leaves_a_module_that_is_a_hyperparameter_as_it_is() -> None:
    callback = CollectWeights(None, [FGE(2)])
    module = GivenClassifier(nn.Linear(4, 3))
    make_trainer(callback).fit(module, batches())
    load_weights(module, {"net.weight": torch.ones(3, 4), "net.bias": torch.ones(3)})
    ensemble = callback.ensemble()
    assert ensemble.predict(INPUTS).shape == (16, 3)
    assert ensemble.build_model().net is not ensemble.build_model().net
    assert torch.equal(module.net.weight, torch.ones(3, 4))
    assert module.net.training
    assert module.net.weight.requires_grad


def test_a_trainer_of_pytorch_lightning_takes_the_callback() -> None:
    class Other(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
            return classification_loss(self, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = CollectWeights(None, [FGE(2)])
    make_trainer(callback, trainer=pytorch_lightning.Trainer).fit(Other(), batches())
    assert callback.ensemble().iterations == [2, 4, 6]


@pytest.mark.parametrize("chosen", [None, 2])
def test_one_of_several_optimizers_has_to_be_chosen(chosen: int | None) -> None:
    callback = CollectWeights(None, [FGE(1)], optimizer=chosen)
    with pytest.raises(
        ValueError, match=rf"one of the module's 2 optimizers, got optimizer={chosen}; pass its"
    ):
        make_trainer(callback).fit(Classifier(5, optimizers=2), batches())


def test_every_step_of_the_chosen_optimizer_counts() -> None:
    fge = FGE(1)
    make_trainer(CollectWeights(None, [fge], optimizer=1)).fit(Classifier(5, optimizers=2), batches())
    assert fge.iterations == list(range(1, 13))  # two in each batch


def test_a_strategy_that_splits_the_weights_is_refused() -> None:
    class Sharded(pl.strategies.ParallelStrategy):
        root_device = torch.device("cpu")

    trainer = make_trainer()
    trainer.strategy.__class__ = Sharded
    with pytest.raises(ValueError, match=r'whole weights, got Sharded; use strategy="ddp", a single dev'):
        CollectWeights(None, [FGE(1)]).setup(trainer, Classifier(5), "fit")


def test_a_callback_that_is_added_twice_is_refused() -> None:
    with pytest.raises(RuntimeError, match="more than one stateful callback"):
        make_trainer(CollectWeights(None, [FGE(1)]), CollectWeights(None, [SWA(1)]))


def test_a_second_fit_needs_a_checkpoint_or_another_callback(tmp_path: Path) -> None:
    fge = FGE(1)
    callback = CollectWeights(None, [fge])
    trainer = make_trainer(callback)
    module = Classifier(5)
    trainer.fit(module, batches())
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    trainer.fit_loop.max_epochs = 2
    with pytest.raises(ValueError, match="has followed 6 updates already; construct another, or resume"):
        trainer.fit(module, batches())
    assert fge.iterations == list(range(1, 7))
    make_trainer(callback, max_epochs=2).fit(module, batches(), ckpt_path=tmp_path / "state.ckpt")
    assert fge.iterations == list(range(1, 13))


class Examined(Classifier):
    def test_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        if self.failing:
            raise OSError("the disk is gone")

    failing = False


@pytest.mark.parametrize("failing", [False, True])
def test_a_checkpoint_that_was_only_tested_does_not_begin_the_next_fit(failing: bool, tmp_path: Path) -> None:
    fge = FGE(1)
    callback = CollectWeights(None, [fge])
    trainer = make_trainer(callback)
    module = Examined(5)
    trainer.fit(module, batches())
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    module.failing = failing
    with pytest.raises(OSError, match="the disk is gone") if failing else nullcontext():
        trainer.test(module, batches(), ckpt_path=tmp_path / "state.ckpt", verbose=False)
    with pytest.raises(ValueError, match="has followed 6 updates already; construct another, or resume"):
        make_trainer(callback).fit(module, batches())
    assert fge.iterations == list(range(1, 7))


def test_the_state_of_a_resume_that_failed_does_not_begin_the_next_fit(tmp_path: Path) -> None:
    trainer = make_trainer(CollectWeights(None, [PFGE(1, 2)]))
    trainer.fit(Classifier(5), batches())
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    other = PFGE(1, 3)
    callback = CollectWeights(None, [other])
    with pytest.raises(ValueError, match="the state is of the collectors"):
        make_trainer(callback).fit(Classifier(5), batches(), ckpt_path=tmp_path / "state.ckpt")
    make_trainer(callback).fit(Classifier(5), batches())
    assert other.iterations == [3, 6]


def test_a_checkpoint_made_without_the_callback_is_a_start_point(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.fit(Classifier(5), batches())
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    fge = FGE(1)
    callback = CollectWeights(None, [fge])
    make_trainer(callback, max_epochs=2).fit(Classifier(5), batches(), ckpt_path=tmp_path / "state.ckpt")
    assert fge.iterations == list(range(1, 7))


def test_resuming_with_another_period_is_refused(tmp_path: Path) -> None:
    trainer = make_trainer(CollectWeights(None, [PFGE(1, 2)]))
    trainer.fit(Classifier(5), batches())
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    other = make_trainer(CollectWeights(None, [PFGE(1, 3)]), max_epochs=2)
    with pytest.raises(ValueError, match=r"the state is of the collectors.*period=2.*got.*period=3"):
        other.fit(Classifier(5), batches(), ckpt_path=tmp_path / "state.ckpt")


def test_members_stay_after_an_exception() -> None:
    class Failing(Classifier):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            if batch_idx == 4:
                raise OSError("the disk is gone")
            return super().training_step(batch, batch_idx)

    callback = CollectWeights(None, [FGE(1)])
    module = Failing(5)
    trainer = make_trainer(callback)
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.fit(module, batches())
    assert callback.ensemble().iterations == [1, 2, 3, 4]
    assert not callback._hooks


def test_a_checkpoint_after_training_holds_what_was_collected(tmp_path: Path) -> None:
    ema = EMA(0.5)
    trainer = make_trainer(CollectWeights(None, [ema]))
    trainer.fit(Classifier(5), batches())
    trainer.save_checkpoint(tmp_path / "state.ckpt")
    saved = torch.load(tmp_path / "state.ckpt", weights_only=True)["callbacks"]["CollectWeights"]
    assert saved["iteration"] == 6
    assert_same_weights(saved["collectors"][0][1]["mean"]["mean"], ema.members()[0])


class Validated(Classifier):
    """Notes the weights that it is validated with, and has BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__(5)
        self.net = make_mlp()
        self.seen: list[Any] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        assert not self.training
        self.seen.append(copy_weights(view_weights(self)))


def unseen() -> StatefulLoader:
    return StatefulLoader([make_batch(9)])


def fit_validated(**options: Any) -> tuple[Validated, SWA]:
    swa = SWA(2)
    chosen = {"validate": swa} if options.pop("validate") else {}
    callback = CollectWeights(None, [swa, FGE(1)], **chosen, **options)
    module = Validated()
    torch.manual_seed(0)
    make_trainer(callback, val_check_interval=1).fit(module, batches(), unseen())
    return module, swa


def test_a_module_is_validated_with_the_average_and_trained_as_without() -> None:
    plain, _ = fit_validated(validate=False)
    module, swa = fit_validated(validate=True)
    # A sanity check of w0, and the weights after one update, before anything was averaged.
    for index in (0, 1):
        assert_same_weights(module.seen[index], plain.seen[index])
    start, *points = plain.seen
    expected = RunningMean(start, counted=True, copied=buffer_names(plain))
    for count, weights in enumerate(points, 1):
        if count % 2 == 0:
            expected.add(weights)
        if count > 1:
            assert_same_weights(module.seen[count], expected.weights())
    assert len(module.seen) == 7
    assert_same_weights(module.seen[-1], swa.members()[0])
    assert_same_weights(view_weights(module), view_weights(plain))


def test_batch_norm_may_be_refreshed_before_a_validation() -> None:
    data = [make_batch(number)[0] for number in range(3)]
    module, swa = fit_validated(validate=True, batches=data)
    expected = Validated()
    load_weights(expected, swa.members()[0])
    refresh_batch_norm(expected, data)
    assert_same_weights(module.seen[-1], view_weights(expected))


def test_batch_norm_is_refreshed_by_a_forward_of_ones_own() -> None:
    data = [make_batch(number)[0] for number in range(3)]
    expected, _ = fit_validated(validate=True, batches=data)
    named = [{"image": inputs} for inputs in data]
    module, _ = fit_validated(
        validate=True, batches=named, forward=lambda module, batch: module(batch["image"])
    )
    assert_same_weights(module.seen[-1], expected.seen[-1])


def test_a_damaged_folder_of_members_is_not_validated_around(tmp_path: Path) -> None:
    class Damage(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            for file in tmp_path.glob("member-*"):
                file.write_bytes(b"?")

    fge = FGE(1, store=tmp_path)
    trainer = make_trainer(CollectWeights(None, [fge], validate=fge), Damage(), val_check_interval=1)
    with pytest.raises(StorageError, match="must be a whole safetensors file"):
        trainer.fit(Validated(), batches(), unseen())


def test_a_checkpoint_while_the_average_is_validated_is_refused(tmp_path: Path) -> None:
    class Saving(Validated):
        def on_validation_epoch_end(self) -> None:
            self.trainer.save_checkpoint(tmp_path / "state.ckpt")

    swa = SWA(1)
    module = Saving()
    trainer = make_trainer(CollectWeights(None, [swa], validate=swa), num_sanity_val_steps=0)
    with pytest.raises(RuntimeError, match=r"holds the weights in training.* SWA\(.*; save it in on_val"):
        trainer.fit(module, batches(), unseen())
    assert not (tmp_path / "state.ckpt").exists()
    assert not torch.equal(module.net[0].weight, swa.members()[0]["net.0.weight"])


def test_a_scheduler_that_is_overridden_is_warned_of() -> None:
    class Scheduled(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    with pytest.warns(UserWarning, match=r"learning rates were .* at update 1 and are now .*; remove it"):
        make_trainer(CollectWeights(Constant(0.05), [FGE(1)])).fit(Scheduled(5), batches())


def test_checkpoints_hold_the_weights_in_training(tmp_path: Path) -> None:
    swa = SWA(1)
    module = Validated()
    files = pl.callbacks.ModelCheckpoint(tmp_path, filename="last")
    trainer = make_trainer(CollectWeights(None, [swa], validate=swa), files, enable_checkpointing=True)
    trainer.fit(module, batches(), unseen())
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert_same_weights(saved, view_weights(module))
    assert not torch.equal(saved["net.0.weight"], swa.members()[0]["net.0.weight"])


def test_after_a_failed_validation_the_module_has_its_own_weights() -> None:
    class Failing(Validated):
        def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
            raise OSError("the disk is gone")

    plain, _ = fit_validated(validate=False)
    swa = SWA(1)
    module = Failing()
    torch.manual_seed(0)
    trainer = make_trainer(CollectWeights(None, [swa], validate=swa), num_sanity_val_steps=0)
    with pytest.raises(OSError, match="the disk is gone"):
        trainer.fit(module, batches(), unseen())
    assert not torch.equal(module.net[0].weight, swa.members()[0]["net.0.weight"])
    assert_same_weights(view_weights(module), view_weights(plain))


def test_validating_without_training_uses_the_weights_as_they_are() -> None:
    swa = SWA(1)
    trainer = make_trainer(CollectWeights(None, [swa], validate=swa))
    module = Validated()
    trainer.fit(module, batches(), unseen())
    trainer.validate(module, unseen(), verbose=False)
    assert_same_weights(module.seen[-1], view_weights(module))


def test_validation_takes_one_of_the_collectors() -> None:
    with pytest.raises(ValueError, match=r"validate must be one of the collectors FGE.*, got SWA.*; add it"):
        CollectWeights(None, [FGE(1)], validate=SWA(1))
