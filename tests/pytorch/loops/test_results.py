"""Results: what becomes of what was logged, against a direct computation in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import Line, Validated, loader, trainer


def values(samples: int, seed: int = 0) -> Tensor:
    """Random numbers in single precision, large and small."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, generator=generator) * 10.0 ** torch.randint(-3, 4, (samples,), generator=generator)


def ragged(samples: int, size: int, seed: int = 0) -> DataLoader[Any]:
    """A loader of `values` whose last batch is shorter."""
    return DataLoader(TensorDataset(values(samples, seed)), batch_size=size)


class Logs(L.Module):
    """Logs the mean of each batch, as told."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.options = options

    def give(self, batch: Any) -> Any:
        return batch[0].mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("m", self.give(batch), **self.options)
        return self.weight * 0

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("m", self.give(batch), **self.options)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def weighted_mean(samples: int, size: int, seed: int = 0) -> float:
    """The mean of the batches' means by their sizes, in double precision."""
    batches = values(samples, seed).split(size)
    return sum(float(batch.mean()) * len(batch) for batch in batches) / samples


@pytest.mark.parametrize(("samples", "size"), [(10, 3), (7, 7), (5, 8), (1000, 64)])
def test_a_mean_is_weighted_by_the_sizes_of_ragged_batches(samples: int, size: int) -> None:
    found = trainer().validate(Logs(), ragged(samples, size))["m"]
    assert found == pytest.approx(weighted_mean(samples, size), rel=1e-14)


def test_a_mean_over_a_training_epoch() -> None:
    used = trainer()
    used.fit(Train(on_epoch=True, on_step=False), ragged(10, 3))
    assert float(used.callback_metrics["m"]) == pytest.approx(weighted_mean(10, 3), rel=1e-14)


class Train(Logs):
    """Without a validation."""

    validation_step = L.Module.validation_step


def test_a_mean_of_many_values_is_not_worn_down() -> None:
    """In single precision the sum of 0.1 and many like it drifts in the fifth digit."""

    class Many(Logs):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            for value in batch[0]:
                self.log("m", value, batch_size=1)

    used = trainer()
    exact = torch.full((20_000,), 0.1)
    found = used.validate(Many(), DataLoader(TensorDataset(exact), batch_size=1000))["m"]
    assert found == pytest.approx(float(exact[0]), rel=1e-14)


def test_several_loaders_have_means_of_their_own() -> None:
    sizes = [(10, 3), (4, 4), (9, 2)]
    loaders = [ragged(samples, size, seed) for seed, (samples, size) in enumerate(sizes)]
    result = trainer().validate(Logs(), loaders)
    for seed, (samples, size) in enumerate(sizes):
        expected = pytest.approx(weighted_mean(samples, size, seed), rel=1e-14)
        assert result[f"m/dataloader_idx_{seed}"] == expected
        assert result[seed] == {f"m/dataloader_idx_{seed}": expected}
    assert len(result) == 3


def test_several_loaders_under_one_name() -> None:
    """add_dataloader_idx=False with names of the user's own."""

    class Named(Logs):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
            self.log(["easy", "hard"][dataloader_idx], self.give(batch), add_dataloader_idx=False)

    result = trainer().validate(Named(), [ragged(10, 3), ragged(4, 3, seed=1)])
    assert result == {
        "easy": pytest.approx(weighted_mean(10, 3), rel=1e-14),
        "hard": pytest.approx(weighted_mean(4, 3, seed=1), rel=1e-14),
    }


REDUCTIONS: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "sum": ("sum", torch.sum),
    "min": ("min", torch.min),
    "max": ("max", torch.max),
    "torch.sum": (torch.sum, torch.sum),
    "torch.min": (torch.min, torch.min),
    "torch.max": (torch.max, torch.max),
    "builtin min": (min, torch.min),
    "builtin max": (max, torch.max),
    "builtin sum": (sum, torch.sum),
    "median": (torch.median, torch.median),
    "a lambda": (lambda stacked: stacked.abs().max(), lambda stacked: stacked.abs().max()),
}


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("give", ["tensor", "number"])
def test_other_reductions(kind: str, give: str) -> None:
    """Of the batches' values, whatever the sizes of the batches."""

    class Gives(Logs):
        def give(self, batch: Any) -> Any:
            mean = super().give(batch)
            return mean if give == "tensor" else float(mean)

    reduce_fx, direct = REDUCTIONS[kind]
    found = trainer().validate(Gives(reduce_fx=reduce_fx), ragged(10, 3))["m"]
    means = torch.stack([batch.mean() for batch in values(10).split(3)]).double()
    assert found == pytest.approx(float(direct(means)), rel=1e-6 if "sum" not in kind else 1e-14)


@pytest.mark.parametrize("kind", ["mean", "sum", "min", "max"])
@pytest.mark.parametrize(
    "value",
    [2, 2.0, True, torch.tensor(2), torch.tensor(2.0), torch.tensor([2.0]), torch.tensor([[2]]), torch.tensor(True),
     torch.tensor(2.0, dtype=torch.float16), torch.tensor(2.0, dtype=torch.bfloat16),
     torch.tensor(2.0, dtype=torch.float64), torch.tensor(2, dtype=torch.uint8)],
    ids=lambda value: f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__,
)  # fmt: skip
def test_numbers_of_every_kind(value: Any, kind: str) -> None:
    class Gives(Logs):
        def give(self, batch: Any) -> Any:
            return value

    found = trainer().validate(Gives(reduce_fx=kind), ragged(4, 2))["m"]
    assert found == float(value) * (2 if kind == "sum" else 1)


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), np.array(0.5), np.array([0.5])], ids=repr)
def test_numbers_of_numpy(value: Any) -> None:
    class Gives(Logs):
        def give(self, batch: Any) -> Any:
            return value

    assert trainer().validate(Gives(), ragged(4, 2))["m"] == 0.5


def test_tensors_and_numbers_under_one_name_add_up() -> None:
    class Mixed(Logs):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("m", torch.tensor(1.0) if batch_idx % 2 else 3.0, reduce_fx=self.options["reduce_fx"])

    found = {
        kind: trainer().validate(Mixed(reduce_fx=kind), ragged(8, 2))["m"] for kind in ("mean", "sum", "min", "max")
    }
    assert found == {"mean": 2.0, "sum": 8.0, "min": 1.0, "max": 3.0}


def test_a_value_that_is_changed_after_it_was_logged() -> None:
    """`loss += penalty` in place does not change what was logged before."""

    class Changes(Train):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = torch.ones(())
            self.log("m", loss, on_step=True, on_epoch=True)
            loss += 1
            return self.weight * 0

    used = trainer()
    used.fit(Changes(), ragged(4, 2))
    assert {name: float(value) for name, value in used.callback_metrics.items()} == {
        "m": 1.0, "m_step": 1.0, "m_epoch": 1.0,
    }  # fmt: skip


def test_what_is_logged_holds_no_graph() -> None:
    class Grows(Train):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.weight * batch[0].mean()
            self.log("m", loss, on_step=True, on_epoch=True, prog_bar=True)
            return loss

    used = trainer()
    used.fit(Grows(), ragged(4, 2))
    assert not any(value.requires_grad for value in used.callback_metrics.values())


# -- sizes of batches -------------------------------------------------------------------------------------------------


def batches_of(make: Callable[[Tensor], Any]) -> list[Any]:
    return [make(torch.ones(3, 2)), make(torch.ones(1, 2) * 5)]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: [x],
        lambda x: (x, torch.ones(len(x), 7)),
        lambda x: {"a": x, "names": ["n"] * len(x)},
        lambda x: [[["deep", {"x": [x]}]]],
        lambda x: {"name": "first", "x": x},
    ],
    ids=["tensor", "list", "tuple", "dict", "nested", "text first"],
)
def test_the_size_is_found_in_any_nesting(make: Callable[[Tensor], Any]) -> None:
    """Three rows of 1 and one row of 5 have the mean 2."""

    class First(Logs):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("m", [1.0, 5.0][batch_idx])

    assert trainer().validate(First(), batches_of(make))["m"] == 2.0


def test_a_given_size_counts() -> None:
    class Given(Logs):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("m", [1.0, 5.0][batch_idx], batch_size=[1, 9][batch_idx])

    assert trainer().validate(Given(), ragged(4, 2))["m"] == pytest.approx(4.6)


def test_sizes_that_differ_within_a_batch_are_warned_of_once() -> None:
    odd = [(torch.ones(3, 2), torch.ones(5)) for _ in range(4)]
    with pytest.warns(UserWarning, match=r"several first sizes.*3.*batch_size=\.\.\.") as caught:
        trainer().validate(Logs(), odd)
    assert len(caught) == 1


def test_a_size_that_nobody_needs_is_not_looked_for() -> None:
    """A batch without tensors is no trouble where no mean is taken, or where the size is given."""

    class Words(Logs):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("n", 1.0, reduce_fx="sum")
            self.log("m", 2.0, batch_size=2)

    assert trainer().validate(Words(), [["a", "b"], ["c"]]) == {"n": 2.0, "m": 2.0}


# -- where and when ---------------------------------------------------------------------------------------------------


def test_what_is_logged_between_batches_counts_once() -> None:
    class Ends(Logs):
        def on_validation_epoch_end(self) -> None:
            self.log("end", 7.0)
            self.log("end_tensor", torch.tensor(8.0))

    result = trainer().validate(Ends(), ragged(10, 3))
    assert (result["end"], result["end_tensor"]) == (7.0, 8.0)


def test_epochs_do_not_mix() -> None:
    class Epochs(Train):
        def give(self, batch: Any) -> Any:
            return float(self.current_epoch)

        def on_train_epoch_end(self) -> None:
            seen.append(float(self.trainer.callback_metrics["m"]))

    seen: list[float] = []
    trainer(max_epochs=3).fit(Epochs(on_epoch=True, on_step=False), ragged(10, 3))
    assert seen == [0.0, 1.0, 2.0]


def test_a_metric_of_one_epoch_stays_until_there_is_a_newer_one() -> None:
    class Rare(Logs):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if self.current_epoch == 0:
                self.log("rare", 1.0)

    used = trainer(max_epochs=2)
    used.fit(Rare(), ragged(4, 2), ragged(4, 2))
    assert float(used.callback_metrics["rare"]) == 1.0


def test_one_name_in_training_and_in_validation() -> None:
    """Two values in two hooks: the newer one is what callbacks see."""
    used = trainer(max_epochs=1)
    used.fit(Logs(on_epoch=True, on_step=False), ragged(10, 3), ragged(4, 3, seed=1))
    assert float(used.callback_metrics["m"]) in (
        pytest.approx(weighted_mean(10, 3)), pytest.approx(weighted_mean(4, 3, seed=1)),
    )  # fmt: skip


def test_nothing_logged_is_nothing_returned() -> None:
    class Silent(Logs):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    result = trainer().validate(Silent(), ragged(4, 2))
    assert result == {}
    assert result[0] == {}


def test_settings_may_differ_between_hooks() -> None:
    """One name in two hooks is two series; only within a hook it keeps its settings."""

    class Both(Logs):
        def on_validation_epoch_end(self) -> None:
            self.log("m", 1.0, prog_bar=True)

    trainer().validate(Both(), ragged(4, 2))


def test_log_dict_logs_each_item() -> None:
    class Dicts(Logs):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log_dict({"a": self.give(batch), "b": 1}, prog_bar=True)

    used = trainer()
    used.validate(Dicts(), ragged(10, 3))
    assert used.progress_bar_metrics == {"a": pytest.approx(weighted_mean(10, 3)), "b": 1.0}


def test_a_callback_may_log() -> None:
    class Logging(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
            pl_module.log("from_callback", 3.0, on_step=False, on_epoch=True)

        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module.log("from_the_end", 4.0)

    used = trainer(callbacks=[Logging()])
    used.fit(Logs(), ragged(4, 2), ragged(4, 2))
    assert float(used.callback_metrics["from_callback"]) == 3.0
    assert float(used.callback_metrics["from_the_end"]) == 4.0


def test_a_submodule_may_log() -> None:
    class Part(L.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.log("part", 5.0)
            return x

    class Whole(Train):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.part(self.weight)

    used = trainer()
    used.fit(Whole(), ragged(4, 2))
    assert float(used.callback_metrics["part"]) == 5.0


def test_a_callback_may_put_a_metric_of_its_own() -> None:
    """Code written for Lightning writes into `trainer.callback_metrics`, and a monitor finds it there."""

    class Puts(L.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.callback_metrics["own"] = torch.tensor(float(-trainer.current_epoch))

    stopping = L.callbacks.EarlyStopping("own", mode="max", patience=1)
    used = trainer(max_epochs=9, callbacks=[Puts(), stopping])
    used.fit(Line(), ragged_pairs())
    assert used.current_epoch == 2
    assert float(used.callback_metrics["own"]) == -1.0


def ragged_pairs() -> Any:
    return [(torch.ones(2, 4), torch.ones(2, 1))] * 2


def test_a_predict_step_cannot_log() -> None:
    class Predicts(Logs):
        def predict_step(self, batch: Any, batch_idx: int) -> None:
            self.log("m", 1.0)

    with pytest.raises(MisconfigurationException, match="cannot be called in `predict_step`"):
        trainer().predict(Predicts(), ragged(4, 2))


@pytest.mark.parametrize("kind", ["min", "max"])
@pytest.mark.parametrize(
    "values",
    [[float("nan"), 1.0, 2.0, 3.0], [1.0, float("nan"), 3.0, 2.0], [1.0, torch.tensor(float("nan")), 0.0, 2.0]],
    ids=str,
)
def test_not_a_number_is_never_the_least_or_the_greatest(kind: str, values: list[Any]) -> None:
    class Gives(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("m", values[batch_idx], on_step=False, on_epoch=True, reduce_fx=kind)
            return self.loss(batch)

    used = trainer()
    used.fit(Gives(), loader())
    assert used.callback_metrics["m"].isnan()


def test_a_function_that_each_step_makes_anew() -> None:
    class Gives(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("m", float(batch_idx), on_step=False, on_epoch=True, reduce_fx=lambda values: values.sum() * 10)
            return self.loss(batch)

    used = trainer(max_epochs=2)
    used.fit(Gives(), loader())
    assert used.callback_metrics["m"] == 60


def test_a_callback_logs_as_the_module_does() -> None:
    class Logs(L.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            self.log("a", 2.0, on_step=False, on_epoch=True)

        def on_validation_epoch_end(self, *_: Any) -> None:
            self.log_dict({"b": 3.0, "c": 4.0})

    logs, used = Logs(), trainer()
    used.callbacks.append(logs)
    used.fit(Validated(), loader(), loader())
    assert {name: float(used.callback_metrics[name]) for name in "abc"} == {"a": 2.0, "b": 3.0, "c": 4.0}
    with pytest.raises(RuntimeError, match=r"`Logs\.log` works only during a Trainer's run"):
        Logs().log("a", 1.0)


def test_one_name_for_several_loaders_is_refused() -> None:
    class Named(Logs):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
            self.log("m", self.give(batch), add_dataloader_idx=False)

    with pytest.raises(MisconfigurationException, match=r"several loaders.*give each a name of its own"):
        trainer().validate(Named(), [ragged(10, 3), ragged(4, 3)])


def test_a_batch_that_weighs_nothing() -> None:
    class Masked(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("m", float(batch_idx), on_step=False, on_epoch=True, batch_size=batch_idx)
            return self.loss(batch)

    used = trainer()
    used.fit(Masked(), loader())
    assert float(used.callback_metrics["m"]) == pytest.approx((1 + 4 + 9) / 6)


def top_three(values: Tensor) -> Tensor:
    return values.topk(3).values.mean()


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
def test_a_function_that_needs_the_whole_epoch() -> None:
    """A checkpoint in mid-epoch is saved though it cannot be computed yet, and the resumed epoch has its value."""

    class Gives(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("m", float(batch_idx), on_step=False, on_epoch=True, reduce_fx=top_three)
            return self.loss(batch)

    trainer(callbacks=[ModelCheckpoint("saved", "{step}", every_n_train_steps=1, save_top_k=-1)]).fit(Gives(), loader())
    used = trainer()
    used.fit(Gives(), loader(), ckpt_path="saved/step=1.ckpt")
    assert used.callback_metrics["m"] == 2.0


@pytest.mark.filterwarnings("ignore:The checkpoint holds the state of callbacks")
@pytest.mark.parametrize(
    "after",
    [{"reduce_fx": "sum"}, {"reduce_fx": top_three}, {"on_step": True}],
    ids=lambda value: str(value).partition(" at 0x")[0],
)
def test_settings_that_changed_since_the_checkpoint(after: dict[str, Any]) -> None:
    """Only what comes after it counts then, and that is said."""

    class Gives(Line):
        options: dict[str, Any] = {}  # noqa: RUF012

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("m", float(batch_idx), **{"on_step": False, "on_epoch": True, **self.options})
            return self.loss(batch)

    trainer(callbacks=[ModelCheckpoint("saved", "{step}", every_n_train_steps=1, save_top_k=-1)]).fit(Gives(), loader())
    changed, used = Gives(), trainer()
    changed.options = after
    with pytest.warns(UserWarning, match="has other settings than in the checkpoint"):
        used.fit(changed, loader(), ckpt_path="saved/step=1.ckpt")
    assert used.callback_metrics["m"] == {"sum": 6, top_three: 2}.get(after.get("reduce_fx"), 2)


def test_the_bars_metrics_can_be_added_to() -> None:
    used = trainer()
    used.fit(Line(), loader())
    used.progress_bar_metrics["mine"] = 1.0
    assert used.progress_bar_metrics["mine"] == 1.0
