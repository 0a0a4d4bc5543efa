"""What Lightning refuses, GPUlayer refuses too: with an error of its own, not one from somewhere inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from tests.parity.oracle import GPULAYER, LIGHTNING, outcome_of
from tests.parity.recorder import Lab, Outcome, loader, loss_of
from tests.parity.scenarios.data import combined
from tests.parity.scenarios.manual import manual_net, one, two

Mistake = Callable[[Lab], Any]


def fit(lab: Lab, module: Any = None, train: Any = None, val: Any = None, **arguments: Any) -> None:
    lab.trainer(**arguments).fit(module or lab.Net(), loader(3) if train is None else train, val)


def net(lab: Lab, **methods: Any) -> Any:
    return type("Net", (lab.Net,), methods)()


def returning(lab: Lab, make: Callable[[Any], Any], **methods: Any) -> Any:
    return net(lab, configure_optimizers=lambda self: make(torch.optim.SGD(self.parameters(), lr=0.1)), **methods)


def manual(lab: Lab, step: Any = None, configure: Any = one, **arguments: Any) -> None:
    fit(lab, manual_net(lab, step or (lambda module, batch, i: None), configure)(), **arguments)


def step_that_returns(lab: Lab, answer: Any) -> Any:
    return net(lab, training_step=lambda self, batch, batch_idx: answer)


def clips(value: float, algorithm: str) -> Any:
    def step(module: Any, batch: Any, i: int) -> None:
        module.manual_backward(loss_of(module.net, batch))
        module.clip_gradients(module.optimizers(), gradient_clip_val=value, gradient_clip_algorithm=algorithm)

    return step


def scheduler_of_another(lab: Lab, optimizer: Any) -> Any:
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    return [optimizer], [StepLR(other, 1)]


class NoState:
    """A scheduler without state_dict."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None: ...


MISTAKES: dict[str, Mistake] = {
    "manual_with_clipping": lambda lab: manual(lab, gradient_clip_val=1.0),
    "manual_with_accumulation": lambda lab: manual(lab, accumulate_grad_batches=2),
    "manual_returns_text": lambda lab: manual(lab, lambda module, batch, i: "text"),
    "manual_closure_is_no_function": lambda lab: manual(
        lab, lambda module, batch, i: module.optimizers().step(closure="closure")
    ),
    "manual_backward_in_automatic": lambda lab: fit(
        lab, net(lab, training_step=lambda self, batch, i: self.manual_backward(loss_of(self.net, batch)))
    ),
    "unknown_clipping_algorithm": lambda lab: manual(lab, clips(1.0, "median")),
    "clipping_given_twice": lambda lab: fit(
        lab,
        net(
            lab,
            configure_gradient_clipping=lambda self, optimizer, gradient_clip_val, gradient_clip_algorithm: (
                self.clip_gradients(optimizer, gradient_clip_val=2.0)
            ),
        ),
        gradient_clip_val=1.0,
    ),
    "two_optimizers_in_automatic": lambda lab: fit(lab, net(lab, configure_optimizers=lambda self: two(lab, self))),
    "optimizers_nonsense": lambda lab: fit(lab, returning(lab, lambda optimizer: "adam")),
    "optimizers_mixed": lambda lab: fit(lab, returning(lab, lambda optimizer: [optimizer, "adam"])),
    "optimizers_of_a_dict_without_one": lambda lab: fit(
        lab, returning(lab, lambda optimizer: {"lr_scheduler": StepLR(optimizer, 1)})
    ),
    "plateau_without_monitor": lambda lab: fit(
        lab, returning(lab, lambda o: {"optimizer": o, "lr_scheduler": ReduceLROnPlateau(o)})
    ),
    "plateau_in_two_lists": lambda lab: fit(lab, returning(lab, lambda o: ([o], [ReduceLROnPlateau(o)]))),
    "monitor_never_logged": lambda lab: fit(
        lab,
        returning(lab, lambda o: {"optimizer": o, "lr_scheduler": ReduceLROnPlateau(o), "monitor": "unknown"}),
    ),
    "unknown_interval": lambda lab: fit(
        lab,
        returning(lab, lambda o: {"optimizer": o, "lr_scheduler": {"scheduler": StepLR(o, 1), "interval": "batch"}}),
    ),
    "scheduler_missing": lambda lab: fit(
        lab, returning(lab, lambda o: {"optimizer": o, "lr_scheduler": {"interval": "step"}})
    ),
    "scheduler_of_another_optimizer": lambda lab: fit(lab, returning(lab, lambda o: scheduler_of_another(lab, o))),
    "scheduler_without_state": lambda lab: fit(lab, returning(lab, lambda o: ([o], [NoState(o)]))),
    "step_returns_text": lambda lab: fit(lab, step_that_returns(lab, "text")),
    "step_returns_a_number": lambda lab: fit(lab, step_that_returns(lab, 0.5)),
    "step_returns_a_dict_without_loss": lambda lab: fit(lab, step_that_returns(lab, {"other": 1})),
    "optimizer_step_without_closure": lambda lab: fit(
        lab, net(lab, optimizer_step=lambda self, epoch, i, optimizer, closure=None: None)
    ),
    "interval_longer_than_an_epoch": lambda lab: fit(lab, val=loader(1), val_check_interval=4),
    "interval_longer_than_a_limited_stream": lambda lab: fit(
        lab, train=loader(5, length=False), val=loader(1), val_check_interval=4, limit_train_batches=3
    ),
    "interval_fraction_of_a_stream": lambda lab: fit(
        lab, train=loader(3, length=False), val=loader(1), val_check_interval=0.5
    ),
    "limit_fraction_of_a_stream": lambda lab: fit(lab, train=loader(3, length=False), limit_train_batches=0.5),
    "limit_val_fraction_of_a_stream": lambda lab: fit(lab, val=loader(3, length=False), limit_val_batches=0.5),
    "limit_below_one_batch": lambda lab: fit(lab, train=loader(3), limit_train_batches=0.1),
    "limit_val_below_one_batch": lambda lab: fit(lab, val=loader(3), limit_val_batches=0.1),
    "fraction_across_epochs": lambda lab: fit(lab, check_val_every_n_epoch=None, val_check_interval=0.5),
    "several_loaders_without_an_index": lambda lab: fit(
        lab, net(lab, validation_step=lambda self, batch, batch_idx: None), val=[loader(1), loader(1)]
    ),
    "one_loader_with_an_index": lambda lab: fit(
        lab, net(lab, validation_step=lambda self, batch, batch_idx, dataloader_idx: None), val=loader(1)
    ),
    "unknown_combination": lambda lab: combined(lab.L, [loader(1)], "shortest"),
    "loader_is_a_number": lambda lab: fit(lab, train=5),
    "loader_and_datamodule": lambda lab: lab.trainer().fit(lab.Net(), loader(1), datamodule=lab.DataModule()),
    "no_loader_at_all": lambda lab: lab.trainer().fit(lab.Net()),
    "no_module_at_all": lambda lab: lab.trainer().validate(dataloaders=loader(1)),
    "negative_epochs": lambda lab: lab.trainer(max_epochs=-2),
    "negative_steps": lambda lab: lab.trainer(max_steps=-2),
    "limit_above_one": lambda lab: lab.trainer(limit_train_batches=1.5),
    "interval_above_one": lambda lab: lab.trainer(val_check_interval=1.5),
    "interval_negative": lambda lab: lab.trainer(val_check_interval=-1),
    "unknown_precision": lambda lab: lab.trainer(precision="8-true"),
    "unknown_argument": lambda lab: lab.trainer(maximum_epochs=1),
    "two_callbacks_of_one_state": lambda lab: fit(
        lab, callbacks=[lab.callbacks.EarlyStopping("a"), lab.callbacks.EarlyStopping("a")]
    ),
}


def raised(library: str, mistake: Mistake, folder: Path) -> Exception | None:
    found: list[Exception] = []

    def scenario(L: ModuleType, folder: Path) -> Outcome:
        try:
            mistake(Lab(L, folder))
        except Exception as error:
            found.append(error)
        return Outcome()

    outcome_of(library, scenario, folder)
    return found[0] if found else None


@pytest.mark.parametrize("name", MISTAKES)
def test_what_lightning_refuses_is_refused(name: str, tmp_path: Path) -> None:
    theirs, ours = (raised(library, MISTAKES[name], tmp_path) for library in (LIGHTNING, GPULAYER))
    assert theirs is not None, "Lightning does not refuse it"
    assert ours is not None, f"Lightning raises {theirs!r}"
    kinds = {kind.__name__ for kind in type(ours).__mro__}
    assert kinds & {"MisconfigurationException", type(theirs).__name__}, f"Lightning: {theirs!r}; GPUlayer: {ours!r}"
    assert len(str(ours)) > 20
