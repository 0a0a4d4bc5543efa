"""CombinedLoader: several loaders as one."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from gpulayer.fabric.utilities.exceptions import MisconfigurationException
from gpulayer.pytorch.core.combined_loader import CombinedLoader
from tests.pytorch.models import Line, Validated, loader, stream, trainer

LETTERS: dict[str, Any] = {"a": range(2), "b": range(10, 13)}

MODES = {
    "min_size": [{"a": 0, "b": 10}, {"a": 1, "b": 11}],
    "max_size": [{"a": 0, "b": 10}, {"a": 1, "b": 11}, {"a": None, "b": 12}],
    "max_size_cycle": [{"a": 0, "b": 10}, {"a": 1, "b": 11}, {"a": 0, "b": 12}],
}


@pytest.mark.parametrize("mode", MODES)
def test_loaders_that_go_together(mode: Any) -> None:
    combined = CombinedLoader(LETTERS, mode)
    assert list(combined) == [(batch, index, 0) for index, batch in enumerate(MODES[mode])]
    assert len(combined) == len(MODES[mode])
    assert list(combined) == [(batch, index, 0) for index, batch in enumerate(MODES[mode])]  # once more


def test_loaders_one_after_another() -> None:
    combined = CombinedLoader(LETTERS, "sequential")
    assert list(combined) == [(0, 0, 0), (1, 1, 0), (10, 0, 1), (11, 1, 1), (12, 2, 1)]
    assert len(combined) == 5


def test_any_nesting() -> None:
    combined = CombinedLoader({"x": [range(2), (range(2), range(2))], "y": range(2)}, "min_size")
    assert [batch for batch, _, _ in combined] == [{"x": [i, (i, i)], "y": i} for i in range(2)]
    assert len(combined.flattened) == 4


def test_a_length_that_is_not_known() -> None:
    with pytest.raises(NotImplementedError, match="not every loader has a length"):
        len(CombinedLoader([stream(), loader()], "min_size"))


def test_an_unknown_mode() -> None:
    with pytest.raises(ValueError, match=r"min_size.*max_size_cycle"):
        CombinedLoader([range(2)], "shortest")  # type: ignore[arg-type]


class Shapes(Line):
    """Notes what kind of batch comes."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append(batch)
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        return self.loss(first)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []


def test_a_dict_of_training_loaders() -> None:
    """The shorter one begins anew until the longer one is through."""
    model, used = Shapes(), trainer()
    used.fit(model, {"a": loader(2), "b": loader(4)})
    assert used.global_step == used.num_training_batches == 4
    assert all(set(batch) == {"a", "b"} for batch in model.seen)


def test_a_list_of_training_loaders() -> None:
    model, used = Shapes(), trainer()
    used.fit(model, [loader(2), loader(3)])
    assert used.global_step == 3
    assert all(type(batch) is list and len(batch) == 2 for batch in model.seen)


def test_a_mode_of_ones_own() -> None:
    used = trainer()
    used.fit(Shapes(), CombinedLoader({"a": loader(2), "b": loader(4)}, "min_size"))
    assert used.global_step == 2


def test_a_limit() -> None:
    used = trainer(limit_train_batches=3)
    used.fit(Shapes(), {"a": loader(2), "b": loader(4)})
    assert used.global_step == 3


def test_a_stream_among_them() -> None:
    used = trainer()
    used.fit(Shapes(), {"a": loader(2), "b": stream(4)})
    assert used.global_step == 4


def test_validation_in_step() -> None:
    """One batch of each at a time; a list of loaders would be taken one after another."""

    class Both(Validated):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            keys.append(sorted(batch))

    keys: list[list[str]] = []
    trainer().validate(Both(), CombinedLoader({"a": loader(2), "b": loader(3)}, "max_size_cycle"))
    assert keys == [["a", "b"]] * 3


def test_limits_of_a_wrong_number() -> None:
    combined = CombinedLoader([range(2), range(3)], "sequential")
    with pytest.raises(MisconfigurationException, match="has 2 loaders, but 3 limits"):
        combined.limits = [1, 2, 3]
    combined.limits = 1
    assert list(combined) == [(0, 0, 0), (0, 0, 1)]


def test_the_size_of_a_batch_of_several() -> None:
    """`self.log` reads it off the first loader's part; here both have one size."""

    class Logs(Shapes):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("m", float(batch_idx), on_epoch=True, on_step=False)
            return super().training_step(batch, batch_idx)

    data = DataLoader(loader(1, 3).dataset, batch_size=2)  # two rows, then one
    used = trainer()
    used.fit(Logs(), {"a": data, "b": data})
    assert float(used.callback_metrics["m"]) == pytest.approx(1 / 3)


def used_up() -> Any:
    return (batch for batch in [10])


@pytest.mark.parametrize(("make", "first"), [(list, None), (used_up, 10)], ids=["empty", "used up"])
def test_a_loader_that_gives_nothing_when_it_is_begun_anew(make: Any, first: int | None) -> None:
    """Its place holds None, and that is said once."""
    with pytest.warns(UserWarning, match="Loader 1 of those that go together gave no batch") as caught:
        batches = [batch for batch, _, _ in CombinedLoader([range(3), make()], "max_size_cycle")]
    assert batches == [[0, first], [1, None], [2, None]]
    assert len(caught) == 1
