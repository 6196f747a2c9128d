"""`Aside`: the records that a process function emits to side outputs (A8), as `yield tag, record`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.core.errors import SchemaMismatch
from engine.core.event_time import EVENT_TIME, side_schema
from engine.core.functions import Row
from engine.core.tags import OutputTag
from engine.runtime.operators.records import batch_of, short


class Aside:
    """Collects the side outputs of one operator. Their records keep event time if those of the main output do."""

    def __init__(self, main: pa.Schema) -> None:
        self._timed = EVENT_TIME in main.names
        self._batches: list[tuple[OutputTag, pa.RecordBatch]] = []

    def wanted(self, rows: Sequence[Any]) -> bool:
        """Says whether some of these results go to a side output."""
        return tuple in set(map(type, rows))

    def put(self, rows: Sequence[Any], times: pa.Array | None, operator: str) -> tuple[list[Row], pa.Array | None]:
        """Puts aside what goes to side outputs; returns the other records and their event times."""
        main: list[int] = []
        tagged: dict[OutputTag, list[int]] = {}
        for place, row in enumerate(rows):
            if type(row) is not tuple:
                main.append(place)
                continue
            if len(row) != 2 or not isinstance(row[0], OutputTag) or not isinstance(row[1], Mapping):
                raise SchemaMismatch(
                    f"{operator}: its function emitted {short(row)}: yield a record, which is a dict, or an OutputTag "
                    'and a record, as in yield LATE, {"n": 1}'
                )
            tagged.setdefault(row[0], []).append(place)
        for tag, places in tagged.items():
            named = f"{operator}, side output {tag.name!r}"
            own = times.take(pa.array(places)) if times is not None else None
            records = [rows[place][1] for place in places]
            self._batches.append((tag, batch_of(records, side_schema(tag.schema, self._timed), named, own)))
        kept = times.take(pa.array(main, pa.int64())) if times is not None else None
        return [rows[place] for place in main], kept

    def take(self) -> list[tuple[OutputTag, pa.RecordBatch]]:
        """Returns what was put aside, each once."""
        batches, self._batches = self._batches, []
        return batches
