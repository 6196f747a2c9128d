"""The options of a start: `LaunchOptions` is what a caller asks for, `MasterLaunch` is what a JobMaster process gets.

Command line, Dagster, drills, benchmarks and tests fill in the same struct. An option and its default are written here
and nowhere else.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.protocol.scaling import Scaling

SLOTS_TIMEOUT_S = 60.0
HEARTBEAT_TIMEOUT_S = 10.0
SLOW_STEP_S = 10.0
STEP_TIMEOUT_S = 300.0


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a start. An option that is None is taken from the configuration file, or else has a default.

    A JobMaster whose deciding thread, or whose Spark, does not answer for `jobmaster_timeout_s` is replaced.
    `path` is the job's import path, `conf` is Spark's configuration. An empty `spark_master` means a Spark on this
    machine. A slot, or a channel between two, counts as lost after `heartbeat_timeout_s` without a sign of life. A
    step of a slot (such as one call of a function) that takes `slow_step_s` is reported, and after `step_timeout_s` the
    slot is killed; deploying may take as long. `allow_non_restored_state`: state that no operator of the job claims any
    more is dropped. `scaling` is what rescales of the running job have decided since; it goes before all other settings
    of the parallelism. A store that other users can write to is refused unless `allow_shared_store`. With `standby` a
    second JobMaster waits with a Spark of its own, and takes over when the first one dies. `code` is an archive with
    the job's package, from which it is imported; empty: from the module search path. `own_tables`: tables at absolute
    paths are put into the job's own folder instead, as a rehearsal has to. The first checkpoint by interval waits up to
    `probation_s` for a record, so that an upgrade can go back from a version that fails at its first one.
    """

    path: str
    name: str | None = None
    params: dict[str, str] = {}
    parallelism: int | None = None
    scaling: Scaling = Scaling()
    max_slots: int | None = None
    slots_timeout_s: float = SLOTS_TIMEOUT_S
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    slow_step_s: float = SLOW_STEP_S
    step_timeout_s: float = STEP_TIMEOUT_S
    jobmaster_timeout_s: float = 30.0
    spark_master: str = ""
    conf: dict[str, str] = {}
    py_files: list[str] = []
    slot_memory_mb: int | None = None
    standby: bool = False
    allow_non_restored_state: bool = False
    allow_shared_store: bool = False
    code: str = ""
    own_tables: bool = False
    probation_s: float = 0.0


class MasterLaunch(LaunchOptions, frozen=True, kw_only=True):
    """The options that a JobMaster process is started with: its name, its slots and its store are decided.

    `id` names this start. The run folder belongs to the last start: a process of an earlier start must not write there.
    `allow_non_restored_state` counts only while the job goes on from `allowed_epoch`, its newest when it was started:
    whatever changes behind that epoch has to be allowed anew. None: that is not known yet, and nothing is dropped.
    `folder` is where the job was started: its import path is looked up there when it is started again. With a `leash`,
    a file, the job ends once no process holds a lock on it: the command that needs the job was killed.
    """

    name: str
    max_slots: int
    store: str
    folder: str = ""
    id: str = ""
    leash: str = ""
    allowed_epoch: int | None = None

    def allows(self, epoch: int) -> bool:
        """Says whether state of this epoch may be dropped."""
        return self.allow_non_restored_state and self.allowed_epoch == epoch


def read_launch(path: str | Path) -> MasterLaunch:
    """Reads the file that a supervisor or a JobMaster process is given as its argument."""
    return msgspec.json.decode(Path(path).read_bytes(), type=MasterLaunch)


def default_name(path: str) -> str:
    """Returns the name of a job: `pageviews` of `assets.pageviews.job:job`, `orders` of `shop.jobs:orders`."""
    module, _, function = path.partition(":")
    if function not in ("", "job"):
        return function
    parts = module.split(".")
    return parts[-2] if len(parts) > 1 and parts[-1] == "job" else parts[-1]
