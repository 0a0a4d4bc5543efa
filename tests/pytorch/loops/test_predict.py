"""predict."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gpulayer.pytorch as L
from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.callbacks import ModelCheckpoint
from tests.pytorch.models import FEATURES, Line, Scored, dataset, loader, same, trainer, weights


def test_one_loader_gives_a_list_of_batches() -> None:
    model = Line()
    predictions = trainer().predict(model, loader(3))
    assert predictions is not None
    rows = dataset(6).tensors[0]
    assert [len(each) for each in predictions] == [2, 2, 2]
    torch.testing.assert_close(torch.cat(predictions), model(rows).detach())
    assert not any(each.requires_grad for each in predictions)


def test_several_loaders_give_a_list_for_each() -> None:
    class Numbers(Line):
        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> Any:
            return dataloader_idx, batch_idx

    assert trainer().predict(Numbers(), [loader(2), loader(3)]) == [[(0, 0), (0, 1)], [(1, 0), (1, 1), (1, 2)]]


def test_a_list_of_one_loader() -> None:
    predictions = trainer().predict(Line(), [loader(2)])
    assert predictions is not None
    assert [len(each) for each in predictions] == [2, 2]


def test_nothing_is_kept_where_that_is_wanted() -> None:
    class Writes(L.Callback):
        def on_predict_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *rest: Any) -> None:
            written.append(outputs)

    written: list[Any] = []
    assert trainer(callbacks=[Writes()]).predict(Line(), loader(3), return_predictions=False) is None
    assert len(written) == 3


def test_without_a_predict_step_forward_gets_the_batch() -> None:
    class Plain(L.Module):
        def forward(self, x: Any) -> Any:
            return x.sum()

    assert trainer().predict(Plain(), [torch.ones(2), torch.ones(3)]) == [2.0, 3.0]


def test_neither_predict_step_nor_forward() -> None:
    class Empty(L.Module):
        pass

    with pytest.raises(MisconfigurationException, match=r"`trainer\.predict` needs `Empty\.predict_step`"):
        trainer().predict(Empty(), loader())


def test_the_best_weights_are_taken_where_no_model_is_given() -> None:
    model = Scored([1.0, 2.0, 3.0])
    used = trainer(max_epochs=3, callbacks=[ModelCheckpoint("saved", monitor="score")])
    used.fit(model, loader(), loader())
    last = weights(model)
    used.predict(model, loader())
    assert same(weights(model), last)
    used.predict(dataloaders=loader())
    assert not same(weights(model), last)
    assert same(weights(model), torch.load(used.checkpoint_callback.best_model_path)["state_dict"])


@pytest.mark.parametrize("inference_mode", [True, False])
def test_inference_mode(inference_mode: bool) -> None:
    class Asks(Line):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    assert trainer(inference_mode=inference_mode).predict(Asks(), loader(1)) == [(inference_mode, False)]


def test_a_table_that_was_made_while_predicting_can_be_trained_with() -> None:
    """A tensor kept from inference mode is made an ordinary one."""

    class Caches(Line):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "table"):
                self.table = torch.ones(1, FEATURES)
            return self.net(x * self.table)

    model, used = Caches(), trainer()
    used.predict(model, loader())
    used.fit(model, loader())
    assert used.global_step == 4
