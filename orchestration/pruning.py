"""Deletes what the sensor reported long ago: Dagster keeps every event for ever, some kilobytes each.

Only events without a run are deleted; those of runs belong to their runs. The newest of each asset always stays.
Dagster has no call for this, so the rows are deleted in its own tables, which are the same in SQLite and PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg
import sqlalchemy as db
from dagster._core.instance.utils import RUNLESS_RUN_ID
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

from orchestration.lineage import Output
from orchestration.spec import StreamSpec

DAYS_KEPT = 7
AT_ONCE = 5000
"""The most events that are deleted at a time: a sensor has 60 s."""


def prune(instance: dg.DagsterInstance, spec: StreamSpec, outputs: Sequence[Output], now_ms: int) -> int:
    """Deletes events of the job's assets that are older than a week, and returns how many."""
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return 0
    before = datetime.fromtimestamp(now_ms / 1000, UTC).replace(tzinfo=None) - timedelta(days=DAYS_KEPT)
    keys = [spec.stream_key, spec.checkpoints_key, spec.restarts_key, *(output.key for output in outputs)]
    return sum(_prune(storage, key.to_string(), before) for key in keys)


def _prune(storage: SqlEventLogStorage, key: str, before: datetime) -> int:
    events, checks = SqlEventLogStorageTable, AssetCheckExecutionsTable
    runless = (events.c.asset_key == key) & (events.c.run_id == RUNLESS_RUN_ID)
    with storage.index_connection() as connection:
        newest = connection.execute(
            db.select(db.func.max(events.c.id)).where(runless).group_by(events.c.dagster_event_type, events.c.partition)
        )
        kept = [row[0] for row in newest]
        last = db.select(db.func.max(checks.c.evaluation_event_storage_id)).where(checks.c.asset_key == key)
        kept += [row[0] for row in connection.execute(last.group_by(checks.c.check_name)) if row[0] is not None]
        old = db.select(events.c.id).where(runless & (events.c.timestamp < before) & events.c.id.not_in(kept))
        ids = [row[0] for row in connection.execute(old.order_by(events.c.id).limit(AT_ONCE))]
        for part in (ids[i : i + 500] for i in range(0, len(ids), 500)):  # SQLite takes a thousand values
            connection.execute(checks.delete().where(checks.c.evaluation_event_storage_id.in_(part)))
            connection.execute(AssetEventTagsTable.delete().where(AssetEventTagsTable.c.event_id.in_(part)))
            connection.execute(events.delete().where(events.c.id.in_(part)))
    return len(ids)
