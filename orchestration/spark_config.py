"""The part of a run's config that says on which Spark it runs: a stream, its drill and its gold all have it."""

from __future__ import annotations

import dagster as dg
import msgspec
from pydantic import Field

from engine.host.launch import LaunchOptions


class SparkConfig(dg.Config):
    """The Spark of a run. Without any setting it is that of the job's spec."""

    master: str | None = Field(
        default=None, description="Spark's master, as `--master` (default: as the job's spec says, else this machine)"
    )
    conf: dict[str, str] = Field(
        default={}, description="Spark's configuration, as `--conf`; it overrides that of the job's spec"
    )
    slot_memory_mb: int | None = Field(default=None, description="memory of a slot, as `--slot-memory`")
    max_slots: int | None = Field(default=None, description="slots of a Spark on this machine, as `--max-slots`")

    def spark_over(self, options: LaunchOptions) -> LaunchOptions:
        """Returns the options of a job's spec with the Spark that this config says."""
        return msgspec.structs.replace(
            options,
            spark_master=self.master or options.spark_master,
            conf={**options.conf, **self.conf},
            slot_memory_mb=self.slot_memory_mb or options.slot_memory_mb,
            max_slots=self.max_slots or options.max_slots,
        )
