"""DataFrames as inputs of a job. Spark writes them into the job's store as Parquet before slots start; slots read it.

Invariant: a replay reads the same rows, even if the tables behind the DataFrame have changed. Only the driver holds the
DataFrame, or the function that makes one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from engine.connectors.files.parquet import ParquetSource
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sources import Discovery, Source, SourceContext, SplitReader
from engine.runtime.static_table import StaticTable
from engine.runtime.written import Versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DataFrameLike: TypeAlias = "DataFrame | Callable[[SparkSession], DataFrame]"
"""A DataFrame, or a function that makes one from a Spark session."""

_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


@dataclass
class DataFrameSource(Source):
    """A DataFrame as a bounded source. The first start of the job writes its files; later starts read the same."""

    frame: DataFrameLike | None
    open_splits = ParquetSource.open_splits
    _parquet: ParquetSource | None = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "frame": None, "_parquet": None}

    def prepare(self, uid: str, session: SparkSession, store: Store, paths: JobPaths) -> None:
        versions = Versions(store, paths.dataframe(uid))
        if not versions.known():
            versions.publish(1, _write(self.frame, session, versions))

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        return self._files(context).discovery(context, known)

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        return self._files(context).reader(split, position, context)

    def _files(self, context: SourceContext) -> ParquetSource:
        if self._parquet is None:
            folder = Versions(context.store, context.paths.dataframe(context.uid)).folder(1)
            self._parquet = ParquetSource(str(_local(context.store.uri(folder))))
            self._parquet.location = replace(self._parquet.location, own=True)
        return self._parquet


@dataclass
class DataFrameTable(StaticTable):
    """A static table that the driver writes: version 1 before slots start, and a new version at each refresh."""

    frame: DataFrameLike | None

    KEPT = 5
    """How many versions before the newest are kept: a restored subtask starts with the one that its snapshot names."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "frame": None}

    def prepare(self, uid: str, session: SparkSession, store: Store, paths: JobPaths) -> None:
        """Lets Spark write version 1, if no start of the job has."""
        versions = Versions(store, paths.static_tables(uid))
        if not versions.known():
            versions.publish(1, _write(self.frame, session, versions))

    def refresh(self, uid: str, session: SparkSession, store: Store, paths: JobPaths) -> int:
        """Writes the next version. If another JobMaster was faster, that one's table is the next version."""
        versions = Versions(store, paths.static_tables(uid))
        known = versions.known()
        newest = known[-1] + 1
        if versions.publish(newest, _write(self.frame, session, versions)):
            for old in known[: -self.KEPT]:
                versions.delete(old)
        return newest


def _write(frame: DataFrameLike | None, session: SparkSession, versions: Versions) -> str:
    """Lets Spark write the DataFrame into a folder of its own, and returns that folder."""
    assert frame is not None, "only the driver has the DataFrame"
    store, folder = versions.store, f"{versions.base}/{secrets.token_hex(8)}"
    before = session.conf.get(_TIMESTAMPS)
    session.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")  # Spark's default, INT96, is read as nanoseconds by other readers
    session.sparkContext.setJobDescription(f"weir: {folder}")
    try:
        data = frame(session) if callable(frame) else frame
        data.write.parquet(store.uri(folder))
    finally:
        session.sparkContext.setJobDescription("")
        session.conf.set(_TIMESTAMPS, str(before))
    return folder


def _local(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))
