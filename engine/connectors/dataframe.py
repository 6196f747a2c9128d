"""DataFrames as inputs of a job. Spark writes them into the job's store as Parquet before slots start; slots read it.

Invariant: a replay reads the same rows, even if the tables behind the DataFrame have changed. Only the driver holds the
DataFrame, or the function that makes one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from engine.connectors.files.parquet import ParquetSource
from engine.core.errors import StoreError, WeirError
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.core.sources import Discovery, Source, SourceContext, SplitReader
from engine.runtime.static_table import DONE, StaticTable

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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "frame": None}

    def prepare(self, uid: str, session: SparkSession, store: Store, paths: JobPaths) -> None:
        folder = paths.dataframe(uid)
        if not _written(store, folder):
            _write(self.frame, session, store, folder)

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        return self._files(context).discovery(context, known)

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        return self._files(context).reader(split, position, context)

    def _files(self, context: SourceContext) -> ParquetSource:
        source = ParquetSource(str(_local(context.store.uri(context.paths.dataframe(context.uid)))))
        source.location = replace(source.location, own=True)
        return source


@dataclass
class DataFrameTable(StaticTable):
    """A static table that the driver writes: version 1 before slots start, and a new version at each refresh."""

    frame: DataFrameLike | None

    KEPT = 5
    """How many versions before the newest are kept: a restored subtask starts with the one that its snapshot names."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "frame": None}

    def prepare(self, uid: str, session: SparkSession, store: Store, paths: JobPaths) -> None:
        if not self.versions(uid, store, paths):
            _write(self.frame, session, store, paths.static_table(uid, 1))

    def refresh(self, uid: str, session: SparkSession, store: Store, paths: JobPaths) -> int:
        versions = self.versions(uid, store, paths)
        newest = versions[-1] + 1
        _write(self.frame, session, store, paths.static_table(uid, newest))
        for old in versions[: -self.KEPT]:
            store.delete(f"{paths.static_table(uid, old)}/{DONE}")  # first, so that no slot starts to read this version
            store.delete(paths.static_table(uid, old))
        return newest


def _write(frame: DataFrameLike | None, session: SparkSession, store: Store, folder: str) -> None:
    assert frame is not None, "only the driver has the DataFrame"
    before = session.conf.get(_TIMESTAMPS)
    session.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")  # Spark's default, INT96, is read as nanoseconds by other readers
    session.sparkContext.setJobDescription(f"weir: {folder}")
    try:
        data = frame(session) if callable(frame) else frame
        data.write.mode("overwrite").parquet(store.uri(folder))
    except Exception as error:
        raise WeirError(f"Spark could not write {folder}: {str(error).splitlines()[0]}") from error
    finally:
        session.sparkContext.setJobDescription("")
        session.conf.set(_TIMESTAMPS, str(before))


def _written(store: Store, folder: str) -> bool:
    try:
        store.read(f"{folder}/{DONE}")
    except (StoreError, FileNotFoundError):
        return False
    return True


def _local(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))
