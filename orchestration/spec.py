"""`StreamSpec`: the description of a job in `assets/<job>/asset.py`, from which the factory makes its definitions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg

from checks.spec import DrillSpec
from engine.host.launch import LaunchOptions
from engine.protocol.autoscale import Bounds

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class GoldSpec:
    """A batch result over the committed epochs of `table`. In its Spark SQL `{table}` stands for the table.

    The result has one part for each day (UTC) of the column `event_time`. At the times of `cron` Dagster makes those
    days again that got rows since.
    """

    table: str
    sql: str
    event_time: str
    cron: str = "*/15 * * * *"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.event_time):
            raise ValueError(f"GoldSpec: {self.event_time!r} can't be the name of a column of event times")
        if "{table}" not in self.sql:
            raise ValueError("the SQL of a GoldSpec must name its input as {table}")


@dataclass(frozen=True)
class RescaleAt:
    """A schedule that gives the running job this parallelism. `name` becomes part of the schedule's name."""

    name: str
    cron: str
    parallelism: int


@dataclass(frozen=True)
class AlertLimits:
    """When the sensor `<job>_alerts` calls something an incident.

    `restarts` within `within_s` seconds are a restart loop. A recovery should take no longer than `recovery_s`. A
    checkpoint is overdue if none was completed for `checkpoint_age_s`; by default for three intervals and 30 seconds.
    The watermark stands still if it has not moved for `watermark_s` while records were read. The store is full when
    less than `store_free_mb` megabytes are left on its disk.
    """

    restarts: int = 3
    within_s: float = 600.0
    recovery_s: float = 60.0
    checkpoint_age_s: float | None = None
    watermark_s: float = 300.0
    store_free_mb: float = 256.0

    def __post_init__(self) -> None:
        for name in ("restarts", "within_s", "recovery_s", "checkpoint_age_s", "watermark_s", "store_free_mb"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"AlertLimits: {name} is {value}, but must be more than 0")


@dataclass(frozen=True)
class StreamSpec:
    """One streaming job in Dagster.

    The job is started with `params` and `parallelism` unless a run's config says otherwise, on the Spark of `master`
    with Spark's configuration `conf` (empty: a Spark on this machine with `max_slots` slots), each slot with
    `slot_memory_mb` megabytes. The engine triggers a
    checkpoint at each interval of the job; `checkpoint_cron` triggers further ones, or all if the job has no interval.
    `savepoint_cron` takes savepoints, into the folder or address `savepoints_to` if there is one, and keeps the last
    `savepoints_kept` of them. `rescale` changes the parallelism of the running job at given times; `autoscale` has the
    limits of a sensor that changes it by the load, once a user turns it on.
    The sensor looks every `watch_every_s` seconds. A job is unhealthy when its JobMaster has sent no heartbeat for
    `silent_after_s` seconds, and is started again after twice that time. With `standby` a second JobMaster waits with a
    Spark of its own, and takes over when the first one dies. A job of `on_first_start` is started and drilled once by
    `make ui`, so that there is something to see. `alerts` says when the job is unhealthy and somebody is told. Dagster
    calls `checkpoints/<job>` stale when none was completed for `checkpoints_within_s`, and a table when it got no row
    for `rows_within_s`. `audit_cron` audits the live tables.
    """

    job: str
    path: str
    description: str
    owners: tuple[str, ...]
    params: Mapping[str, str] = field(default_factory=dict)
    parallelism: int | None = None
    master: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    slot_memory_mb: int | None = None
    max_slots: int | None = None
    standby: bool = False
    allow_shared_store: bool = False
    checkpoint_cron: str | None = None
    savepoint_cron: str | None = None
    savepoints_kept: int = 7
    savepoints_to: str | None = None
    rescale: tuple[RescaleAt, ...] = ()
    autoscale: Bounds | None = None
    drill: DrillSpec | None = None
    drill_cron: str | None = None
    audit_cron: str | None = None
    gold: GoldSpec | None = None
    watch_every_s: int = 15
    silent_after_s: float = 30.0
    alerts: AlertLimits = AlertLimits()
    checkpoints_within_s: float = 900.0
    rows_within_s: float = 3600.0
    on_first_start: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.job):
            raise ValueError(f"{self.job!r} can't be a job's name in Dagster: use letters, digits and _ only")
        for name in ("checkpoints_within_s", "rows_within_s"):
            if (value := getattr(self, name)) < 60:
                raise ValueError(
                    f"job {self.job!r}: {name} is {value}, but Dagster hears of a job once a minute: 60 or more"
                )
        if self.savepoints_kept < 1:
            raise ValueError(
                f"job {self.job!r} keeps {self.savepoints_kept} savepoints: savepoints_kept must be 1 or more"
            )
        names = [at.name for at in self.rescale]
        if wrong := [name for name in names if not _NAME.fullmatch(name) or names.count(name) > 1]:
            raise ValueError(
                f"job {self.job!r}: rescale {wrong[0]!r} needs a name of its own, of letters, digits and _"
            )
        if self.drill_cron and self.drill is None:
            raise ValueError(f"job {self.job!r} has a schedule for drills (drill_cron), but no drill: set drill, too")

    @property
    def options(self) -> LaunchOptions:
        """The options with which the job is started unless a run's config says otherwise."""
        return LaunchOptions(
            path=self.path,
            name=self.job,
            params=dict(self.params),
            parallelism=self.parallelism,
            spark_master=self.master,
            conf=dict(self.conf),
            slot_memory_mb=self.slot_memory_mb,
            max_slots=self.max_slots,
            standby=self.standby,
            allow_shared_store=self.allow_shared_store,
        )

    @property
    def stream_key(self) -> dg.AssetKey:
        return dg.AssetKey(["streams", self.job])

    @property
    def checkpoints_key(self) -> dg.AssetKey:
        return dg.AssetKey(["checkpoints", self.job])

    @property
    def savepoints_key(self) -> dg.AssetKey:
        return dg.AssetKey(["savepoints", self.job])

    @property
    def restarts_key(self) -> dg.AssetKey:
        return dg.AssetKey(["restarts", self.job])

    def source_key(self, uid: str) -> dg.AssetKey:
        return dg.AssetKey(["sources", self.job, uid])

    def table_key(self, name: str) -> dg.AssetKey:
        """Returns the key of a table by its path in the job's part of the store, and of any other sink by its uid."""
        return dg.AssetKey(["tables", self.job, *name.split("/")])

    @property
    def partitions_name(self) -> str:
        """The name of the days of event time that the rows of the gold's table are of."""
        return f"weir_{self.job}_event_days"

    @property
    def drills_key(self) -> dg.AssetKey:
        return dg.AssetKey(["drills", self.job])

    @property
    def audits_key(self) -> dg.AssetKey:
        return dg.AssetKey(["audits", self.job])

    @property
    def rehearsals_key(self) -> dg.AssetKey:
        return dg.AssetKey(["rehearsals", self.job])

    @property
    def gold_key(self) -> dg.AssetKey:
        return dg.AssetKey(["gold", self.job])

    @property
    def tags(self) -> dict[str, str]:
        """The tag by which all assets of a job are found: groups hold the assets of one kind, of all jobs."""
        return {"weir/job": self.job}

    @property
    def pool(self) -> str:
        """The pool of a job, with one place, so that start, cancel and checkpoint of the job never overlap."""
        return f"weir_{self.job}"
