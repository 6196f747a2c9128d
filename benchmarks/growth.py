"""How the window job's rate changes with the number of keys, slots, columns, and with the size of batches.

`python -m benchmarks.growth` (three minutes) writes results/growth.json and the table in docs/benchmarks.md.
"""

from __future__ import annotations

import json
import time

from benchmarks.report import PAGE, RESULTS, stamp
from benchmarks.weir import WeirJob, rate_between

SECONDS = 6.0
BEGIN, END = "<!-- growth: written by python -m benchmarks.growth -->", "<!-- end of growth -->"
SWEEPS: dict[str, list[dict[str, int]]] = {
    "keys": [{"keys": keys} for keys in (10_000, 100_000, 1_000_000)],
    "slots": [{"parallelism": slots} for slots in (1, 2, 3, 4)],
    "columns of values": [{"columns": columns} for columns in (1, 10)],
    "rows in a batch": [{"batch": rows} for rows in (262_144, 65_536, 8_192, 1_024)],
}


def main() -> None:
    measured = []
    for sweep, points in SWEEPS.items():
        for point in points:
            rate = _rate(**point)
            measured.append({"sweep": sweep, "at": next(iter(point.values())), "rows_per_s": rate})
            print(f"{sweep} {measured[-1]['at']:,}: {rate / 1e6:.2f} M rows/s", flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "growth.json").write_text(json.dumps({"points": measured, **stamp()}, indent=2) + "\n")
    _into_page(measured)


def _rate(**point: int) -> float:
    with WeirJob("benchmarks.jobs:growth", **point) as job:
        job.wait_for("three checkpoints are complete", lambda: len(job.checkpoints()) >= 3)
        first = job.checkpoints()[-1]
        time.sleep(SECONDS)
        job.wait_for("another one", lambda: job.checkpoints()[-1].number > first.number)
        last = job.checkpoints()[-1]
        job.check()
    return rate_between(first, last)


def _into_page(measured: list[dict[str, object]]) -> None:
    rows = ["| what grows | | rows/s |", "|---|---:|---:|"]
    rows += [f"| {one['sweep']} | {one['at']:,} | {one['rows_per_s'] / 1e6:.2f} M |" for one in measured]  # type: ignore[operator]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *rows, "", END]) + after)


if __name__ == "__main__":
    main()
