"""Makes Nexmark's events as its generator defines them: of 50 events one is a person, 3 are auctions, 46 are bids.

Every value follows from the number of its event, so all runs have the same events. The random texts that pad events to
their sizes are drawn from a pool: no query looks into them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PERSONS, AUCTIONS, CYCLE = 1, 3, 50
FIRST_PERSON, FIRST_AUCTION, FIRST_CATEGORY = 1000, 1000, 10
CATEGORIES = 5
ACTIVE_PEOPLE, IN_FLIGHT_AUCTIONS = 1000, 100
PERSON_LEAD, AUCTION_LEAD = 10, 10
HOT_EVERY = 100
"""The newest id that is divisible by this is the hot one."""
HOT_SELLERS, HOT_AUCTIONS, HOT_BIDDERS = 4, 2, 4
"""One of so many sellers, auctions and bidders is not the hot one."""
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
EVENTS_PER_S = 10_000
START_MS = 1_436_918_400_000
FILES = 2
"""One for each subtask of a source. Each holds every second cycle of events, in order of event time."""

STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
_POOL = 4096

Columns = dict[str, pa.Array]


def write(folder: Path, events: int) -> None:
    """Writes the events of each kind into a folder of its own: `person`, `auction`, `bid`."""
    for kind, columns_of in (("person", persons), ("auction", auctions), ("bid", bids)):
        (folder / kind).mkdir(parents=True)
        for file in range(FILES):
            cycles = np.arange(file, events // CYCLE, FILES)
            table = pa.table(columns_of(cycles))
            pq.write_table(table, folder / kind / f"{file}.parquet", row_group_size=500_000)


def persons(cycles: np.ndarray) -> Columns:
    event = cycles * CYCLE
    draw = _Draw(event)
    first, last = draw.below(len(FIRST_NAMES)), draw.below(len(LAST_NAMES))
    names = [f"{a} {b}" for a in FIRST_NAMES for b in LAST_NAMES]
    return {
        "id": pa.array(_last_person(event) + FIRST_PERSON),
        "name": _chosen(names, first * len(LAST_NAMES) + last),
        "email": _chosen(_texts(20), draw.below(_POOL)),
        "credit_card": _chosen(_texts(19), draw.below(_POOL)),
        "city": _chosen(CITIES, draw.below(len(CITIES))),
        "state": _chosen(STATES, draw.below(len(STATES))),
        "date_time": _times(event),
        "extra": _chosen(_texts(PERSON_BYTES - 90), draw.below(_POOL)),
    }


def auctions(cycles: np.ndarray) -> Columns:
    event = (cycles[:, None] * CYCLE + PERSONS + np.arange(AUCTIONS)).ravel()
    draw = _Draw(event)
    newest = _last_person(event)
    hot = draw.below(HOT_SELLERS) > 0
    seller = np.where(hot, newest // HOT_EVERY * HOT_EVERY, _some_person(event, draw))
    initial = draw.price()
    horizon_ms = _stamps(event + IN_FLIGHT_AUCTIONS * CYCLE // AUCTIONS) - _stamps(event)
    expires = _stamps(event) + 1 + draw.below(np.maximum(horizon_ms * 2, 1))
    return {
        "id": pa.array(_last_auction(event) + FIRST_AUCTION),
        "item_name": _chosen(_texts(20), draw.below(_POOL)),
        "description": _chosen(_texts(100), draw.below(_POOL)),
        "initial_bid": pa.array(initial),
        "reserve": pa.array(initial + draw.price()),
        "date_time": _times(event),
        "expires": pa.array(expires * 1000).cast(pa.timestamp("us")),
        "seller": pa.array(seller + FIRST_PERSON),
        "category": pa.array(FIRST_CATEGORY + draw.below(CATEGORIES)),
        "extra": _chosen(_texts(AUCTION_BYTES - 184), draw.below(_POOL)),
    }


def bids(cycles: np.ndarray) -> Columns:
    event = (cycles[:, None] * CYCLE + np.arange(PERSONS + AUCTIONS, CYCLE)).ravel()
    draw = _Draw(event)
    hot = draw.below(HOT_AUCTIONS) > 0
    auction = np.where(hot, _last_auction(event) // HOT_EVERY * HOT_EVERY, _some_auction(event, draw))
    hot = draw.below(HOT_BIDDERS) > 0
    bidder = np.where(hot, _last_person(event) // HOT_EVERY * HOT_EVERY + 1, _some_person(event, draw))
    channel = draw.below(len(CHANNELS))
    return {
        "auction": pa.array(auction + FIRST_AUCTION),
        "bidder": pa.array(bidder + FIRST_PERSON),
        "price": pa.array(draw.price()),
        "channel": _chosen(CHANNELS, channel),
        "url": _chosen([f"https://www.nexmark.com/{name.lower()}/item.htm?query=1" for name in CHANNELS], channel),
        "date_time": _times(event),
        "extra": _chosen(_texts(BID_BYTES - 68), draw.below(_POOL)),
    }


# --- ids ---


def _last_person(event: np.ndarray) -> np.ndarray:
    """Returns the newest person's number, counted from 0, at each event."""
    return event // CYCLE


def _last_auction(event: np.ndarray) -> np.ndarray:
    """Returns the newest auction's number, counted from 0, at each event; -1 before the first."""
    of_cycle = np.clip(event % CYCLE - PERSONS, -1, AUCTIONS - 1)
    return event // CYCLE * AUCTIONS + of_cycle


def _some_person(event: np.ndarray, draw: _Draw) -> np.ndarray:
    people = _last_person(event) + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + draw.below(active + PERSON_LEAD)


def _some_auction(event: np.ndarray, draw: _Draw) -> np.ndarray:
    newest = _last_auction(event)
    oldest = np.maximum(newest - IN_FLIGHT_AUCTIONS, 0)
    return oldest + draw.below(newest - oldest + 1 + AUCTION_LEAD)


# --- times and random values ---


def _stamps(event: np.ndarray) -> np.ndarray:
    """Returns milliseconds: Flink SQL's watermarks have no finer times."""
    return START_MS + event * 1000 // EVENTS_PER_S


def _times(event: np.ndarray) -> pa.Array:
    return pa.array(_stamps(event) * 1000).cast(pa.timestamp("us"))


class _Draw:
    """Random numbers of events, one after the other, by a mixing of their bits (splitmix64)."""

    def __init__(self, event: np.ndarray) -> None:
        self._state = event.astype(np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)

    def _next(self) -> np.ndarray:
        self._state = self._state + np.uint64(0xD1B5_4A32_D192_ED03)
        mixed = (self._state ^ (self._state >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
        return np.asarray(mixed >> np.uint64(33))

    def below(self, bound: int | np.ndarray) -> np.ndarray:
        return (self._next() % np.asarray(bound, np.uint64)).astype(np.int64)

    def price(self) -> np.ndarray:
        return np.round(10 ** (self._next() / 2**31 * 6) * 100).astype(np.int64)


def _texts(length: int) -> list[str]:
    letters = np.random.default_rng(length).integers(97, 123, (_POOL, length), np.uint8)
    return [row.tobytes().decode() for row in letters]


def _chosen(texts: list[str], places: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), pa.array(texts)).cast(pa.string())
