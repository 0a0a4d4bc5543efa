"""Kill training runs with SIGKILL at random moments, start them again, and count what was lost or came out otherwise.

    python benchmarks/crash.py                           # 300 rounds, about 2 minutes
    python benchmarks/crash.py --rounds 20 --seed 7      # the same moments as the last time with this seed
    python benchmarks/crash.py --kinds workers stream --write

A round is a kill and the start that follows. In two of three the moment is chosen to be inside a save: a file-system
watcher tells when the temporary file of a checkpoint appears. A run is killed one to three times; when it has come to
its end its weights, optimizer, metrics, metrics.csv, best checkpoint and files must be those, bit for bit, of a run
that nobody killed, and every batch must have been the very next one. What the runs are is in `tests/crash/runs.py`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import common

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.crash.kill import kill_and_resume
from tests.crash.runs import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--width", type=int, default=1024, help="of the model: the larger, the longer a save takes")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/")
    chosen = parser.parse_args()
    began = time.monotonic()
    print(f"seed {chosen.seed}", flush=True)
    report = kill_and_resume(chosen.rounds, chosen.seed, tuple(chosen.kinds), chosen.width)
    result = {
        "seed": chosen.seed,
        "rounds": report.rounds,
        "rounds_by_kind": dict(report.kinds),
        "killed_inside_a_save": report.inside_a_save,
        "runs": report.runs,
        "unreadable": report.unreadable,
        "wrong_batches": report.wrong_batches,
        "other_ends": report.other_ends,
        "leftovers": report.leftovers,
        "seconds": round(time.monotonic() - began),
    }
    for name, value in result.items():
        print(f"{name:22} {value if not isinstance(value, list) else len(value)}")
    for fault in report.faults:
        print("-", fault)
    if chosen.write:
        lines = [
            f"| {name} | {value if not isinstance(value, list) else len(value)} |" for name, value in result.items()
        ]
        common.write("crash", "\n".join(["| | |", "|---|---|", *lines]), result)
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
