"""load_from_checkpoint: whose mistake an error is, and modules that make their layers late."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from tests.pytorch.models import FEATURES, Line, loader, same, trainer, weights


def saved(model: Line) -> str:
    used = trainer()
    used.fit(model, loader())
    used.save_checkpoint("model.ckpt")
    return "model.ckpt"


def test_on_an_object() -> None:
    """One that was never trained, one that was, and one in the middle of it; its weights stay."""

    class Loads(Line):
        def on_train_end(self) -> None:
            with pytest.raises(TypeError, match="call it on the class"):
                self.load_from_checkpoint("anything.ckpt")

    model = Loads()
    path, trained = saved(model), weights(model)
    for one in (Loads(), model):
        with pytest.raises(TypeError, match=r"`model = Loads\.load_from_checkpoint\(\.\.\.\)`"):
            one.load_from_checkpoint(path)
    assert same(weights(model), trained)
    assert same(weights(Loads.load_from_checkpoint(path)), trained)


class Late(Line):
    """Its layer is made in `configure_model`, as those are that a strategy shards."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.late: nn.Module | None = None
        self.configured = 0

    def configure_model(self) -> None:
        self.configured += 1
        if self.late is None:
            self.late = nn.Linear(FEATURES, self.hparams.width)


def test_layers_made_late() -> None:
    model = Late(width=5)
    path = saved(model)
    loaded = Late.load_from_checkpoint(path)
    assert loaded.configured == 1
    assert same(weights(loaded), weights(model))
    again = trainer(max_epochs=2)
    again.fit(loaded, loader(), ckpt_path=path)
    assert (again.global_step, loaded.configured) == (8, 2)
    assert set(trainer().test(Late(width=5), loader(), ckpt_path=path)) == {"test_loss"}


def calls_wrongly() -> None:
    nn.Linear(3)  # type: ignore[call-arg]


def adds_wrongly() -> None:
    sum(["a"])  # type: ignore[list-item]


def says_so() -> None:
    raise TypeError("__init__() missing 1 required positional argument: 'width'")


MISTAKES: dict[Callable[[], None], str] = {
    calls_wrongly: "missing 1 required positional argument: 'out_features'",
    adds_wrongly: "unsupported operand",
    says_so: "argument: 'width'",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_type_error_deep_in_init_is_no_missing_hyperparameter(mistake: Callable[[], None]) -> None:
    """It arrives as it is, and its last frame is the user's."""

    class Wrong(Line):
        def __init__(self) -> None:
            super().__init__()
            if wrong:
                mistake()

    wrong = False
    path = saved(Wrong())
    wrong = True
    with pytest.raises(TypeError, match=MISTAKES[mistake]) as caught:
        Wrong.load_from_checkpoint(path)
    assert caught.value.__cause__ is None
    assert mistake.__name__ in [entry.name for entry in caught.traceback]


def test_a_missing_argument_is_one() -> None:
    class Needs(Line):
        def __init__(self, width: int) -> None:
            super().__init__()

    path = saved(Line())
    with pytest.raises(MisconfigurationException, match="'width'"):
        Needs.load_from_checkpoint(path)
