"""Runs that are killed twenty times end as if nothing had happened. `benchmarks/crash.py` does it 300 times."""

from __future__ import annotations

import random

import pytest

from tests.crash.kill import kill_and_resume
from tests.crash.runs import KINDS

ROUNDS = 20


@pytest.mark.timeout(300)
def test_a_killed_run_ends_like_one_that_was_not() -> None:
    seed = random.SystemRandom().randrange(10**6)
    report = kill_and_resume(ROUNDS, seed, KINDS)
    assert report.faults == [], f"seed {seed}"
    assert report.rounds == ROUNDS
    assert report.inside_a_save >= ROUNDS / 5, "the watcher did not find the saves"
