"""`every(...)`: the one trigger."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.pytorch.loops.when import Every, every


def test_steps() -> None:
    trigger = every(steps=3)
    assert [step for step in range(10) if trigger.at_step(step)] == [3, 6, 9]
    assert not any(trigger.at_epoch(epoch) for epoch in range(10))
    assert not trigger.at_time()


def test_epochs() -> None:
    trigger = every(epochs=2)
    assert [epoch for epoch in range(7) if trigger.at_epoch(epoch)] == [2, 4, 6]
    assert not any(trigger.at_step(step) for step in range(10))


def test_zero_is_never() -> None:
    assert not any(every(steps=0).at_step(step) for step in range(10))
    assert not any(every(epochs=0).at_epoch(epoch) for epoch in range(10))


def test_seconds() -> None:
    now = [100.0]
    trigger = Every(seconds=10, clock=lambda: now[0])
    fired = []
    for now[0] in (100.0, 109.0, 110.0, 111.0, 119.9, 120.0, 145.0, 150.0, 155.0):
        assert trigger.at_time() == trigger.at_time()  # to ask changes nothing
        if trigger.at_time():
            trigger.restart()
            fired.append(now[0])
    assert fired == [110.0, 120.0, 145.0, 155.0]


@pytest.mark.parametrize("given", [{}, {"steps": 1, "epochs": 1}, {"steps": -1}, {"seconds": -0.5}])
def test_nonsense(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"every\(\.\.\.\) takes"):
        every(**given)
