"""A long metrics.csv: microseconds a row and memory, from the first row to the last of a million.

    python benchmarks/csv_rows.py                                        # about 4 minutes
    python benchmarks/csv_rows.py --contestants file gpulayer            # about 1 minute
    python benchmarks/csv_rows.py --rounds 3 --write

A row has ten metrics, the epoch and the step, and reaches the operating system as it comes, as in a run. The processor
time of each tenth of the rows is taken by itself; memory is the resident set beyond that after the first thousand rows.
Fresh processes in alternating rounds; medians. `file` writes the same lines to a file that it flushes after each.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import common

CONTESTANTS = ("file", "gpulayer", "lightning")
PARTS = 10
NAMES = [f"metric_{i}" for i in range(10)]

Log = Callable[[dict[str, float], int], object]


def plain_file() -> tuple[Log, Callable[[], object]]:
    """Rows of a fixed header by Python's csv module."""
    file = open("metrics.csv", "w", newline="")  # noqa: SIM115 - closed by the second function
    writer = csv.DictWriter(file, ["epoch", "step", *NAMES])
    writer.writeheader()

    def log(metrics: dict[str, float], step: int) -> None:
        writer.writerow({**metrics, "step": step})
        file.flush()

    return log, file.close


def logger_of(library: str) -> tuple[Log, Callable[[], object]]:
    """The library's CSVLogger, told to save after each row, as its Trainer does."""
    logger = importlib.import_module(f"{library}.pytorch.loggers").CSVLogger(".")

    def log(metrics: dict[str, float], step: int) -> None:
        logger.log_metrics(metrics, step)
        logger.save()

    return log, lambda: logger.finalize("success")


def child(contestant: str, rows: int) -> common.Measurement:
    log, close = plain_file() if contestant == "file" else logger_of(contestant)
    result: common.Measurement = {}
    size, base = rows // PARTS, 0.0
    for part in range(PARTS):
        start = time.process_time()
        for step in range(part * size, (part + 1) * size):
            log({"epoch": step // 1000, **dict.fromkeys(NAMES, step / 7)}, step)
            if step == 1000:
                base = resident_mb()
        result[f"us_{part}"] = 1e6 * (time.process_time() - start) / size
        result[f"mb_{part}"] = resident_mb() - base
    close()
    (path,) = Path().rglob("metrics.csv")
    with path.open() as file:
        assert sum(1 for _ in file) == 1 + PARTS * size, "rows are missing"
    result["file_mb"] = path.stat().st_size / 1024**2
    return result


def resident_mb() -> float:
    """What the process has in memory now; where the system does not say, the most that it had."""
    if (status := Path("/proc/self/statm")).exists():
        return int(status.read_text().split()[1]) * resource.getpagesize() / 1024**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2  # bytes on macOS


def report(results: dict[str, list[common.Measurement]], rows: int) -> str:
    header = ["rows", *(f"{name}, {unit}" for name in results for unit in ("us a row", "MB more"))]
    lines = [
        (
            f"to {rows // PARTS * (part + 1):,}",
            *(
                f"{common.median(measured, f'{key}_{part}'):.1f}"
                for measured in results.values()
                for key in ("us", "mb")
            ),
        )
        for part in range(PARTS)
    ]
    size = common.median(next(iter(results.values())), "file_mb")
    return f"{common.table(header, lines)}\n\nThe file has {size:.0f} MB in the end."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="NAME")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/results")
    parser.add_argument("--child", metavar="CONTESTANT", help="take one measurement, print JSON")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.rows)))
        sys.exit()
    results = common.alternate(
        options.contestants, options.rounds, lambda one: common.measure(__file__, one, "--rows", str(options.rows))
    )
    table = report(results, options.rows)
    print(table)
    if options.write:
        common.write("csv_rows", table, {"rounds": options.rounds, "rows": options.rows, "measurements": results})
