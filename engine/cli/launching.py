"""Declares the flags of `weir run` and `weir submit` once, and takes the steps that both commands share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.markup import escape

from engine.cli.shared import Store, console, errors, print_raised
from engine.connectors.table import tables_of
from engine.core.errors import JobError, StoreError, WeirError
from engine.host.launch import (
    HEARTBEAT_TIMEOUT_S,
    SLOTS_TIMEOUT_S,
    SLOW_STEP_S,
    STEP_TIMEOUT_S,
    LaunchOptions,
    MasterLaunch,
)
from engine.host.run_folder import MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.process.from_savepoint import begin_from
from engine.process.settings import read_settings
from engine.process.submit import FromSnapshot, choose_snapshot, fork_launch, plan_launch
from engine.spark.conf import literal_secrets
from engine.store.bucket import is_bucket

_SLOTS, _TIMEOUTS, _SPARK, _EPOCHS = "Slots", "Timeouts", "Spark", "Going on from another state"

JobPath = Annotated[str, typer.Argument(help="import path of the job, MODULE:FUNCTION", metavar="JOB")]
Param = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="parameter of the job (weir describe lists them); may be repeated"),
]
Parallelism = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="parallelism of operators that set none themselves (default 2)")
]
_Name = Annotated[str | None, typer.Option(metavar="NAME", help="name of the job (default: from its import path)")]
_MaxSlots = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="number of task slots that Spark gets (default: the number of cores, at least 4)",
        rich_help_panel=_SLOTS,
    ),
]
_SlotMemory = Annotated[
    int | None,
    typer.Option(
        min=64, metavar="MB", help="memory that a slot may hold before it is restarted", rich_help_panel=_SLOTS
    ),
]
_SlotsTimeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="missing slots are waited for without end; they are reported after this time, again and again",
        rich_help_panel=_TIMEOUTS,
    ),
]
_HeartbeatTimeout = Annotated[
    float,
    typer.Option(
        min=1,
        metavar="SECONDS",
        help="a slot or a channel without a sign of life for so long counts as lost",
        rich_help_panel=_TIMEOUTS,
    ),
]
_SlowStep = Annotated[
    float,
    typer.Option(
        min=0.5,
        metavar="SECONDS",
        help="one call of a function, or another step, that takes so long is reported",
        rich_help_panel=_TIMEOUTS,
    ),
]
_StepTimeout = Annotated[
    float,
    typer.Option(
        min=1, metavar="SECONDS", help="a slot that hangs in a step for so long is killed", rich_help_panel=_TIMEOUTS
    ),
]
_Master = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Spark master, such as spark://host:7077 (default: Spark on this machine)",
        rich_help_panel=_SPARK,
    ),
]
_Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="Spark configuration; a secret as NAME=env:VARIABLE", rich_help_panel=_SPARK
    ),
]
_PyFiles = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="archive of code for workers on other machines (default: the one that weir package makes)",
        rich_help_panel=_SPARK,
    ),
]
_Standby = Annotated[
    bool,
    typer.Option(
        "--standby",
        metavar="",
        help="keep a second JobMaster with a Spark of its own ready, which takes over when the first one dies",
    ),
]
_AllowSharedStore = Annotated[
    bool, typer.Option("--allow-shared-store", metavar="", help="start even if other users can write to the store")
]
_AllowNonRestored = Annotated[
    bool,
    typer.Option(
        "--allow-non-restored-state",
        metavar="",
        help="drop state, positions and tables of operators that are gone",
        rich_help_panel=_EPOCHS,
    ),
]
_Rewind = Annotated[
    bool,
    typer.Option(
        "--rewind",
        metavar="",
        help="go back to the newest intact epoch; tables hide what later epochs published",
        rich_help_panel=_EPOCHS,
    ),
]
_Fork = Annotated[
    str | None,
    typer.Option(
        "--fork",
        metavar="NAME",
        help="start another job of this name from the newest intact epoch",
        rich_help_panel=_EPOCHS,
    ),
]
_AllowReplay = Annotated[
    bool,
    typer.Option(
        "--allow-replay",
        metavar="",
        help="go back to the newest intact epoch; published output stays, and some is published again",
        rich_help_panel=_EPOCHS,
    ),
]
_From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="SAVEPOINT",
        help="begin from a savepoint: its folder, or JOB/NAME; it stays as it is",
        rich_help_panel=_EPOCHS,
    ),
]
_Claim = Annotated[
    bool,
    typer.Option(
        "--claim",
        metavar="",
        help="with --from: the job owns the savepoint and deletes it when it is no longer needed",
        rich_help_panel=_EPOCHS,
    ),
]


@dataclass(frozen=True)
class GoBack:
    """The user's choice of the state to go on from. Going behind committed output is never automatic."""

    rewind: bool
    fork_name: str | None
    allow_replay: bool
    savepoint: str | None = None
    claim: bool = False


def launching(command: Callable[[LaunchOptions, str, GoBack], None]) -> Callable[..., None]:
    """Gives a command the flags of a start. Calls it with the options, the store and the choice of the epoch."""

    def start(
        job: JobPath,
        store: Store = ".weir",
        param: Param = None,
        parallelism: Parallelism = None,
        name: _Name = None,
        max_slots: _MaxSlots = None,
        slots_timeout: _SlotsTimeout = SLOTS_TIMEOUT_S,
        heartbeat_timeout: _HeartbeatTimeout = HEARTBEAT_TIMEOUT_S,
        slow_step: _SlowStep = SLOW_STEP_S,
        step_timeout: _StepTimeout = STEP_TIMEOUT_S,
        master: _Master = "",
        conf: _Conf = None,
        py_files: _PyFiles = None,
        slot_memory: _SlotMemory = None,
        standby: _Standby = False,
        allow_non_restored_state: _AllowNonRestored = False,
        allow_shared_store: _AllowSharedStore = False,
        rewind: _Rewind = False,
        fork_name: _Fork = None,
        allow_replay: _AllowReplay = False,
        savepoint: _From = None,
        claim: _Claim = False,
    ) -> None:
        options = LaunchOptions(
            path=job,
            name=name,
            params=pairs("--param", param),
            parallelism=parallelism,
            max_slots=max_slots,
            slots_timeout_s=slots_timeout,
            heartbeat_timeout_s=heartbeat_timeout,
            slow_step_s=slow_step,
            step_timeout_s=step_timeout,
            spark_master=master,
            conf=pairs("--conf", conf),
            py_files=py_files or [],
            slot_memory_mb=slot_memory,
            standby=standby,
            allow_non_restored_state=allow_non_restored_state,
            allow_shared_store=allow_shared_store,
        )
        command(options, store, GoBack(rewind, fork_name, allow_replay, savepoint, claim))

    start.__name__, start.__doc__ = command.__name__, command.__doc__
    return start


def shown_options(job: str, param: list[str] | None, parallelism: int | None) -> LaunchOptions:
    """Returns the options that decide a job's graph, as a start would use them now."""
    parallelism = parallelism or read_settings().parallelism
    return LaunchOptions(path=job, params=pairs("--param", param), parallelism=parallelism)


def pairs(flag: str, pairs: list[str] | None) -> dict[str, str]:
    """Reads the values of a flag that is given as `--flag NAME=VALUE`, any number of times."""
    result = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise JobError(f"{flag} {pair!r}: write NAME=VALUE")
        result[name] = value
    return result


def prepare(options: LaunchOptions, store: str, back: GoBack) -> MasterLaunch:
    """Checks the start, makes the chosen epoch the one to go on from, and prints what is special about it."""
    for name in literal_secrets(options.conf):
        errors.print(
            f"[yellow]--conf {escape(name)} looks like a secret, and every user of this machine can read a command "
            f"line: put it into an environment variable and write --conf {escape(name)}=env:VARIABLE[/]"
        )
    launch = plan_launch(options, store)
    if sum([back.rewind, back.fork_name is not None, back.allow_replay, back.savepoint is not None]) > 1:
        raise WeirError("choose one of --from, --rewind, --fork and --allow-replay")
    if back.claim and back.savepoint is None:
        raise WeirError("--claim says who owns a savepoint: name it with --from SAVEPOINT")
    if back.savepoint is not None:
        said = begin_from(launch, back.savepoint, claim=back.claim)
    elif back.fork_name is not None:
        launch, said = fork_launch(launch, back.fork_name)
    elif back.rewind or back.allow_replay:
        said = choose_snapshot(launch, FromSnapshot.REWIND if back.rewind else FromSnapshot.ALLOW_REPLAY)
    else:
        said = choose_snapshot(launch, FromSnapshot.LAST)
    if said:
        console.print(said, highlight=False)
    return launch


def finish(ended: MasterExit, launch: MasterLaunch) -> None:
    """Prints how the job ended and where its tables are; a failure ends `weir` with exit code 1."""
    if ended.outcome in (Outcome.FAILED, Outcome.FENCED):
        errors.print(f"[bold red]error:[/] job {launch.name!r} {ended.outcome}: {escape(ended.reason)}")
        print_raised(ended.raised)
        errors.print(f"log: {RunFolder(launch.store, launch.name).log_file}", highlight=False)
        raise typer.Exit(1)
    console.print(f"[green]{launch.name} is {ended.outcome}[/]: {ended.reason}", highlight=False)
    tables: list[tuple[str, str]] = []
    with suppress(StoreError):  # the job has ended well, whatever its store does now
        tables = tables_of(launch.store, launch.name)
    for _, table in tables:
        console.print(f"  spark.read.parquet({table!r})", highlight=False, soft_wrap=True)
    if tables and is_bucket(launch.store):
        console.print("  (Spark needs hadoop-aws for s3a://; docs/s3.md shows how)", highlight=False)


def store_hint(store: str) -> str:
    """Returns the flag that finds this store again, if a command without it would look elsewhere."""
    return "" if store in (".weir", read_settings().store) else f" --store {store}"
