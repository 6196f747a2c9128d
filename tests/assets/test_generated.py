"""Generated records: a pure function of seed and number, a little out of order, and never late."""

from __future__ import annotations

import numpy as np
import pytest

from assets.generated import BLOCK, START_MS, Generated, arrived, chance
from assets.unpaid_orders.source import EVENTS
from engine.api import StreamEnvironment
from engine.testing import run

NUMBERS = Generated("numbers", "value long", 250, lambda event, seed: {"value": chance(event, seed) % 100})


def test_every_event_arrives_once_and_within_its_block() -> None:
    n = np.arange(100 * BLOCK)
    event = arrived(n, seed=3)
    assert sorted(event.tolist()) == n.tolist() and (event // BLOCK == n // BLOCK).all()
    assert (event != n).any()


def test_a_record_depends_on_its_number_and_the_seed_alone() -> None:
    whole = NUMBERS.columns(np.arange(1000), seed=7)
    parts = [NUMBERS.columns(np.arange(first, 1000, 3), seed=7) for first in range(3)]
    for name, values in whole.items():
        for first, part in enumerate(parts):
            assert (values[first::3] == part[name]).all(), name
    assert (whole["value"] != NUMBERS.columns(np.arange(1000), seed=8)["value"]).any()


def test_chance_spreads_evenly_and_salts_are_independent() -> None:
    n = np.arange(100_000)
    one, other = chance(n, 1, 1), chance(n, 1, 2)
    assert one.min() >= 0
    counts = np.bincount(one % 10 * 10 + other % 10, minlength=100)
    assert counts.min() > 850 and counts.max() < 1150


def test_events_are_a_step_apart_and_no_record_is_late() -> None:
    columns = NUMBERS.columns(np.arange(1000))
    ms = columns["ts"] // 1000
    assert (ms == START_MS + 250 * columns["event_id"]).all()
    for split in (0, 1):
        mine = ms[split::2]
        assert (np.maximum.accumulate(mine) - mine < BLOCK * 250).all()

    def job(env: StreamEnvironment) -> None:
        NUMBERS.read(env)

    result = run(job, params={"rows": "1000", "rate": "0", "raw": "true"})
    assert sorted(row["event_id"] for row in result.rows("numbers")) == sorted(columns["event_id"].tolist())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_orders_are_paid_in_time_at_the_limit_too_late_or_never(seed: int) -> None:
    columns = EVENTS.columns(np.arange(4_000), seed)
    minutes = {"order": {}, "pay": {}, "look": {}}
    for order, what, us in zip(columns["order_id"], columns["what"].to_pylist(), columns["ts"], strict=True):
        minutes[what][int(order)] = int(us) / 60_000_000
    delays = [minutes["pay"][order] - at for order, at in minutes["order"].items() if order in minutes["pay"]]
    assert {round(delay, 1) for delay in delays} == {10.2, 15.0, 19.8}
    assert len(minutes["order"]) == 2_000 and len(delays) < 1_500
