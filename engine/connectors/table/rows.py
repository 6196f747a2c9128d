"""The rows of one file of a Weir table: encoded as Parquet, read again, digested."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.ports import Store
from engine.core.sinks import Withheld
from engine.protocol.manifest import Committable
from engine.state.digests import digest, digested

_MODULUS = 1 << 64


def encoded(rows: pa.Table) -> bytes:
    """Returns rows as a Parquet file of a Weir table."""
    out = pa.BufferOutputStream()
    # Spark refuses a file without a column that is NOT NULL in another, so no table could ever get a column.
    rows = rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))
    pq.write_table(rows, out, compression="zstd", coerce_timestamps="us", allow_truncated_timestamps=True)
    data: bytes = out.getvalue().to_pybytes()
    return data


def without(store: Store, committables: Sequence[Committable]) -> Withheld:
    """Leaves out all rows of these committables."""
    tables = [read_rows(store, one.payload["path"]) for one in committables]
    return Withheld([], sum(table.num_rows for table in tables), sum(map(digest_of, tables)) % _MODULUS)


def read_rows(store: Store, path: str) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(store.read(path))).read(use_threads=False)


def digest_of(rows: pa.Table) -> int:
    """Returns the digest that the ledger has of these rows."""
    columns = [rows.column(name).combine_chunks() for name in digested(rows.schema)]
    return digest(columns) if rows.num_rows else 0
