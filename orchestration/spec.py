"""`StreamSpec`: what `assets/<job>/asset.py` says about its job, and all that the factory needs to know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import dagster as dg

from checks.spec import DrillSpec
from engine.host.launch import LaunchOptions

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class GoldSpec:
    """A batch result over the committed epochs of `table`: Spark SQL in which `{table}` stands for it."""

    table: str
    sql: str

    def __post_init__(self) -> None:
        if "{table}" not in self.sql:
            raise ValueError("the SQL of a GoldSpec names its input as {table}")


@dataclass(frozen=True)
class StreamSpec:
    """One streaming job in Dagster.

    `params` and `parallelism` are what it is started with unless a run's config says otherwise. The engine owns the
    checkpoint interval; `checkpoint_cron` triggers further ones (or all of them, where the job has no interval).
    `watch_every_s` is how often the sensor looks; a job is unhealthy when its JobMaster has been silent for
    `silent_after_s`, and is started again after twice that.
    """

    job: str
    path: str
    description: str
    owners: tuple[str, ...]
    params: Mapping[str, str] = field(default_factory=dict)
    parallelism: int | None = None
    checkpoint_cron: str | None = None
    drill: DrillSpec | None = None
    drill_cron: str | None = None
    gold: GoldSpec | None = None
    watch_every_s: int = 15
    silent_after_s: float = 30.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.job):
            raise ValueError(f"{self.job!r} can't be a job's name in Dagster: letters, digits and _ only")
        if self.drill_cron and self.drill is None:
            raise ValueError(f"job {self.job!r} has a schedule for drills, but no drill")

    @property
    def options(self) -> LaunchOptions:
        """What the job is started with unless a run's config says otherwise."""
        return LaunchOptions(path=self.path, name=self.job, params=dict(self.params), parallelism=self.parallelism)

    @property
    def stream_key(self) -> dg.AssetKey:
        return dg.AssetKey(["streams", self.job])

    @property
    def checkpoints_key(self) -> dg.AssetKey:
        return dg.AssetKey(["checkpoints", self.job])

    @property
    def sinks_key(self) -> dg.AssetKey:
        return dg.AssetKey(["sinks", self.job])

    @property
    def drills_key(self) -> dg.AssetKey:
        return dg.AssetKey(["drills", self.job])

    @property
    def gold_key(self) -> dg.AssetKey:
        return dg.AssetKey(["gold", self.job])

    @property
    def tags(self) -> dict[str, str]:
        """Assets are grouped by what they are (the UI shows only the last part of a key); the tag finds a job's own."""
        return {"weir/job": self.job}

    @property
    def pool(self) -> str:
        """Start, cancel and checkpoint of one job never overlap: each takes the one place in this pool."""
        return f"weir_{self.job}"
