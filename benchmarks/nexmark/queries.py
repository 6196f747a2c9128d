"""Nexmark's queries as Weir jobs, in the columnar lane. Slots import this module, so it imports nothing heavy.

q6 is left out: Flink SQL can't run it. Flink SQL's own form of each query is in `benchmarks/nexmark/flink.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pyarrow as pa

from engine.api import (
    DataStream,
    EventTimeSessionWindows,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    SlidingEventTimeWindows,
    StreamEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
    maximum,
    total,
)
from engine.connectors.files import ParquetSource
from engine.connectors.table import TableSink
from engine.core.functions import Row

BOUND = "4 s"
LONGEST_AUCTION = "400 ms"
"""No auction of these events is open for longer."""
FOR_EVER = "36500 d"

SCHEMAS = {
    "person": "id long, name string, email string, credit_card string, city string, state string, "
    "date_time timestamp_ntz, extra string",
    "auction": "id long, item_name string, description string, initial_bid long, reserve long, "
    "date_time timestamp_ntz, expires timestamp_ntz, seller long, category long, extra string",
    "bid": "auction long, bidder long, price long, channel string, url string, date_time timestamp_ntz, extra string",
}


def q0(env: StreamEnvironment) -> None:
    """Pass through: what reading and writing cost."""
    _out(_read(env, "bid").select("auction", "bidder", "price", "date_time", "extra"))


def q1(env: StreamEnvironment) -> None:
    """Convert each bid's price to another currency."""
    price = pl.col("price") * 0.908
    _out(
        _read(env, "bid").select("auction", "bidder", price=price, date_time=pl.col("date_time"), extra=pl.col("extra"))
    )


def q2(env: StreamEnvironment) -> None:
    """Select the bids of some auctions."""
    _out(_read(env, "bid").where(pl.col("auction") % 123 == 0).select("auction", "price"))


def q3(env: StreamEnvironment) -> None:
    """Who sells in category 10 in three states, whenever the person registered: a join without bounds in time."""
    auctions = _read(env, "auction").where(pl.col("category") == 10).select("id", "seller")
    persons = _read(env, "person").where(pl.col("state").is_in(["OR", "ID", "CA"]))
    sellers = persons.select("name", "city", "state", person=pl.col("id"))
    joined = auctions.key_by("seller").interval_join(sellers.key_by("person")).between(f"-{FOR_EVER}", FOR_EVER)
    _out(joined.select("name", "city", "state", "id", uid="joined"))


def q4(env: StreamEnvironment) -> None:
    """Average price of the winning bids, per category. A new average goes out every 10 s of event time."""
    auctions = _read(env, "auction").select("id", "category", "expires")
    bids = _read(env, "bid").select("auction", "price", bid_at=pl.col("date_time"))
    pairs = auctions.key_by("id").interval_join(bids.key_by("auction")).between(0, LONGEST_AUCTION)
    valid = pairs.select("id", "category", "price", "expires", "bid_at", uid="pairs")
    valid = valid.where(pl.col("bid_at") <= pl.col("expires"))
    # All bids of an auction are within its length, so one session has them all.
    auction = valid.key_by("id", "category").window(EventTimeSessionWindows.with_gap(LONGEST_AUCTION))
    won = auction.aggregate(final=maximum("price"), uid="won")
    closed = won.key_by("category").window(TumblingEventTimeWindows.of("10 s"))
    sums = closed.aggregate(auctions=count(), finals=total("final"), uid="closed")
    _out(
        sums.key_by("category").process(Average(), uid="average", schema="category long, average double, auctions long")
    )


class Average(KeyedProcessFunction):
    """Adds up the sums of a category. It gets one record per category and 10 s of event time."""

    def open(self, context: RuntimeContext) -> None:
        self._sums = context.get_state(ValueStateDescriptor("sums", pa.list_(pa.int64())))

    def process_element(self, value: Row, context: ProcessContext) -> Iterable[Row]:
        auctions, finals = self._sums.value() or (0, 0)
        auctions, finals = auctions + value["auctions"], finals + value["finals"]
        self._sums.update([auctions, finals])
        yield {"category": value["category"], "average": finals / auctions, "auctions": auctions}


def q5(env: StreamEnvironment) -> None:
    """The auctions with the most bids of the last 10 s, every 2 s."""
    bids = _read(env, "bid").key_by("auction").window(SlidingEventTimeWindows.of("10 s", "2 s"))
    counts = bids.aggregate(num=count(), uid="counts").select("auction", "num", ends=pl.col("window_end"))
    most = counts.key_by("ends").window(TumblingEventTimeWindows.of("2 s")).aggregate(most=maximum("num"), uid="most")
    hot = counts.join(most.select("most", of=pl.col("ends"))).where("ends").equal_to("of")
    hot = hot.window(TumblingEventTimeWindows.of("2 s")).select("auction", "num", "most", "ends", uid="hot")
    _out(hot.where(pl.col("num") == pl.col("most")).select("auction", "num", "ends"))


def q7(env: StreamEnvironment) -> None:
    """The highest bids of each 10 s."""
    bids = _read(env, "bid").select("auction", "bidder", "price", "date_time")
    of_all = bids.select("price", all=pl.lit(0)).key_by("all").window(TumblingEventTimeWindows.of("10 s"))
    highest = of_all.aggregate(most=maximum("price"), uid="highest").select("most", "window_end")
    # The event time of a window's result is its end - 1 ms; Nexmark takes bids from its start to its end.
    joined = highest.key_by("most").interval_join(bids.key_by("price")).between(-9_999, 1)
    _out(joined.select("auction", "price", "bidder", "date_time", uid="bids"))


def q8(env: StreamEnvironment) -> None:
    """Persons who sold in the 10 s in which they registered."""
    sellers = _read(env, "auction").select("seller").key_by("seller").window(TumblingEventTimeWindows.of("10 s"))
    selling = sellers.aggregate(auctions=count(), uid="sellers").select("seller")
    joined = _read(env, "person").select("id", "name").join(selling).where("id").equal_to("seller")
    _out(joined.window(TumblingEventTimeWindows.of("10 s")).select("id", "name", "window_start", uid="new"))


def q11(env: StreamEnvironment) -> None:
    """Bids of each bidder's session, which ends after 10 s without a bid."""
    sessions = _read(env, "bid").key_by("bidder").window(EventTimeSessionWindows.with_gap("10 s"))
    _out(sessions.aggregate(bids=count(), uid="sessions"))


def q12(env: StreamEnvironment) -> None:
    """Bids of each bidder per 100 ms of the clock. Nexmark takes 10 s, which is longer than a run here."""
    moments = _read(env, "bid").key_by("bidder").window(TumblingProcessingTimeWindows.of("100 ms"))
    _out(moments.aggregate(bids=count(), uid="moments"))


def _read(env: StreamEnvironment, kind: str) -> DataStream:
    env.enable_checkpointing("1 s")
    folder = env.params.get("events", "/tmp/nexmark", "folder of the events")
    stream = env.from_source(ParquetSource(f"{folder}/{kind}"), schema=SCHEMAS[kind], uid=kind)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(BOUND).with_timestamps("date_time")
    return stream.assign_timestamps_and_watermarks(strategy)


def _out(results: DataStream) -> None:
    results.sink_to(TableSink("out"), uid="out")
