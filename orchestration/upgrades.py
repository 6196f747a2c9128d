"""The job `<job>_upgrade`: dry run → rehearsal with its check → switch to another version of the running job.

The steps call what `weir upgrade` calls. The rehearsal is a materialization of `rehearsals/<job>`; its check is
reported before the run goes on, so a red one is seen although the run fails there. The rehearsal only reads the running
job and takes the place of a drill: checkpoints and savepoints of the job go on beside it.
"""

from typing import Any

import dagster as dg
from pydantic import Field

from checks.results import AuditResult, CheckResult, Verdict
from engine.core.errors import WeirError
from engine.graph.upgrade_plan import UpgradePlan
from engine.host.launch import MasterLaunch
from engine.host.upgrade_record import UpgradeRecord
from engine.observe.client import JobClient
from engine.process import upgrading
from engine.process.rehearsing import RehearsalFailed
from engine.process.upgrading import NewVersion
from engine.protocol.failures import Raised
from engine.protocol.upgrading import Phase
from orchestration.drills import POOL
from orchestration.metadata import data_docs, rows_table
from orchestration.resources import STORE, WeirStore, readable_errors
from orchestration.savepoints import savepoint_figures
from orchestration.spec import StreamSpec
from orchestration.streams import BY, describe

SAME_OUTPUT = "same_output"


class UpgradeConfig(dg.Config):
    """The version that the job gets, and how it is rehearsed."""

    to: str | None = Field(
        default=None, description="import path of the new version (default: the same, with changed code)"
    )
    checkpoints: int = Field(
        default=5,
        ge=0,
        description="checkpoints for which the new version is rehearsed beside the old one; 0: no rehearsal",
    )
    switch_if_different: bool = Field(
        default=False, description="switch although the new version writes other rows than the old one"
    )
    allow_non_restored_state: bool = Field(
        default=False, description="drop state, positions and tables of operators that are gone"
    )
    params: dict[str, str] = Field(default={}, description="parameters of the new version, beside those of the old one")
    parallelism: int | None = Field(
        default=None, ge=1, description="parallelism of the new version (default: as it is)"
    )
    timeout_s: float = Field(
        default=upgrading.PATIENCE_S,
        ge=1,
        description="how long the new version may take to publish an epoch before the old one returns",
    )

    @property
    def version(self) -> NewVersion:
        return NewVersion(self.to, self.params, self.parallelism, self.allow_non_restored_state)


def upgrade_job(spec: StreamSpec) -> dg.JobDefinition:
    dry_run, rehearse, switch = _dry_run(spec), _rehearse(spec), _switch(spec)

    @dg.config_mapping
    def one_for_all(config: UpgradeConfig) -> dg.RunConfig:
        return dg.RunConfig(ops={op.name: config for op in (dry_run, rehearse, switch)})

    @dg.job(
        name=f"{spec.job}_upgrade",
        config=one_for_all,
        description=f"Replace {spec.job} by another version of its code: show what becomes of its state, rehearse the "
        "new version beside the old one, and switch if both write the same rows. If the new version fails before its "
        "first epoch, the old one goes on.",
    )
    def upgrade_stream() -> None:
        switch(rehearse(dry_run()))

    return upgrade_stream


def _dry_run(spec: StreamSpec) -> dg.OpDefinition:
    @dg.op(name=f"dry_run_{spec.job}", description="Shows what becomes of the job's state. Changes nothing.")
    def dry_run(context: dg.OpExecutionContext, config: UpgradeConfig, weir: WeirStore) -> None:
        client = weir.client(context.instance, spec)
        with readable_errors():
            if (begun := upgrading.unfinished(client)) is not None:
                context.log.info(begun.in_words(client.name))
                return
            launch = upgrading.new_launch(client, config.version)
            planned = upgrading.plan(client, launch)
        shown: dict[str, Any] = {"plan": plan_table(planned), "from_epoch": planned.epoch, "to": launch.path}
        for row in planned.rows:
            context.log.info(f"{row.uid} ({row.kind}): {row.fate.value}: {row.what}")
        if planned.refused:
            raise dg.Failure(_refused(planned, launch), metadata=shown, allow_retries=False)
        context.add_output_metadata(shown)

    return dry_run


def _refused(planned: UpgradePlan, launch: MasterLaunch) -> str:
    try:
        upgrading.check(planned, launch)
    except WeirError as error:
        return "\n".join([f"{error}:", *(f"{row.uid}: {row.what}. What to do: {row.fix}" for row in planned.refused)])
    raise AssertionError("nothing is refused")


def plan_table(planned: UpgradePlan) -> dg.TableMetadataValue:
    return rows_table(
        [
            {"operator": row.uid, "kind": row.kind, "state": row.fate.value, "what becomes of it": row.what}
            | ({"what to do": row.fix} if row.fix else {})
            for row in planned.rows
        ]
    )


def _rehearse(spec: StreamSpec) -> dg.OpDefinition:
    @dg.op(
        name=f"rehearse_{spec.job}",
        description="Runs the new version beside the old one, and compares what they write.",
        ins={"planned": dg.In(dg.Nothing)},
        pool=POOL,
    )
    def rehearse(context: dg.OpExecutionContext, config: UpgradeConfig, weir: WeirStore) -> None:
        from checks.rehearsal import run_rehearsal

        client = weir.client(context.instance, spec)
        with readable_errors():
            if config.checkpoints == 0 or upgrading.unfinished(client) is not None:
                context.log.info("no rehearsal: none is asked for, or the switch was begun already")
                return
            launch = upgrading.new_launch(client, config.version)
            try:
                result = run_rehearsal(client, launch, config.checkpoints, context.log.info)
            except RehearsalFailed as failed:
                report(context, _could_not_keep_up(spec, launch, failed))
                raise
        for event in rehearsal_events(spec, launch, result, weir, config.switch_if_different):
            report(context, event)
        if (why := why_not_switch(result, config.switch_if_different)) is not None:
            raise dg.Failure(why, metadata={"rows": differing(result)}, allow_retries=False)

    return rehearse


def report(context: Any, event: dg.AssetMaterialization | dg.AssetCheckEvaluation) -> None:
    """Logs an event at once. `log_event` takes a check, too, although its types do not say so."""
    context.log_event(event)


def why_not_switch(result: AuditResult, switch_if_different: bool) -> str | None:
    """Says why the run ends before the switch; None: it goes on."""
    match result.verdict:
        case Verdict.PASSED:
            return None
        case Verdict.FAILED if switch_if_different:
            return None
        case Verdict.FAILED:
            return (
                f"the new version writes other rows than the old one, so {result.job} was not switched "
                f"({in_words(result)}). If this is what the upgrade is for, set switch_if_different"
            )
        case _:
            return f"the rehearsal could not be judged, so {result.job} was not switched: {in_words(result)}"


def rehearsal_events(
    spec: StreamSpec, launch: MasterLaunch, result: AuditResult, weir: WeirStore, accepted: bool
) -> list[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """Returns the rehearsal and its check. If it could not be judged there is no check: neither pass nor fail."""
    made = dg.AssetMaterialization(
        spec.rehearsals_key,
        description=f"{launch.path}: {result.verdict.value}",
        metadata={
            "to": launch.path,
            "verdict": result.verdict.value,
            "epochs": result.epoch,
            **result.figures,
            **data_docs(result.data_docs, weir.path),
        },
    )
    if result.verdict is Verdict.COULD_NOT_RUN:
        return [made]
    return [made, _evaluation(spec, result, dg.AssetCheckSeverity.WARN if accepted else dg.AssetCheckSeverity.ERROR)]


def _evaluation(spec: StreamSpec, result: AuditResult, severity: dg.AssetCheckSeverity) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=spec.rehearsals_key,
        check_name=SAME_OUTPUT,
        passed=result.verdict is Verdict.PASSED,
        severity=severity,
        description=in_words(result),
        metadata=check_metadata(result),
    )


def check_metadata(result: AuditResult) -> dict[str, Any]:
    return {
        "unexpected": sum(check.unexpected for check in result.checks),
        **({"rows": differing(result)} if any(check.rows for check in result.checks) else {}),
        "verdicts": rows_table(
            [
                {"check": c.name, "verdict": c.verdict.value, "unexpected": c.unexpected, "says": c.summary}
                for c in result.checks
            ]
        ),
    }


def in_words(result: AuditResult) -> str:
    """Says what the rehearsal has found: how many rows are the same, or what is wrong with which table."""
    if result.verdict is Verdict.PASSED:
        counted = [f"{name} version: {rows:,.0f}" for name, rows in result.figures.items() if ": rows of the " in name]
        return "; ".join(["both versions wrote the same rows", *counted])
    wrong = [check for check in result.checks if check.verdict is not Verdict.PASSED]
    return "; ".join(f"{_table(check)}: {check.summary}" for check in wrong)


def _table(check: CheckResult) -> str:
    return check.name.rpartition(": ")[0]


def differing(result: AuditResult) -> dg.TableMetadataValue:
    """Returns examples of the rows that only one version has, or that have other values: by table and key."""
    return rows_table([{"table": _table(check), **row} for check in result.checks for row in check.rows])


def _could_not_keep_up(spec: StreamSpec, launch: MasterLaunch, failed: RehearsalFailed) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=spec.rehearsals_key,
        check_name=SAME_OUTPUT,
        passed=False,
        description=str(failed) + _traceback(failed.raised),
        metadata={"to": launch.path},
    )


def _traceback(raised: Raised | None) -> str:
    return f"\n{raised.traceback}" if raised is not None and raised.traceback else ""


def _switch(spec: StreamSpec) -> dg.OpDefinition:
    @dg.op(
        name=f"switch_{spec.job}",
        description="Stops the old version with a savepoint, and goes on with the new one from there.",
        ins={"rehearsed": dg.In(dg.Nothing)},
        pool=spec.pool,
    )
    def switch(context: dg.OpExecutionContext, config: UpgradeConfig, weir: WeirStore) -> None:
        client = weir.client(context.instance, spec)
        with readable_errors():
            record = upgrade(client, config, context.log.info)
            made = next((one for one in client.savepoints() if one.savepoint == record.savepoint), None)
        if made is not None:
            context.log_event(dg.AssetMaterialization(spec.savepoints_key, metadata=savepoint_figures(made)))
        said = record.in_words(client.name)
        if record.progress.phase is not Phase.UPGRADED:
            raise dg.Failure(said + _traceback(record.progress.raised), allow_retries=False)
        context.log.info(f"{said}, behind epoch {record.progress.cut}")
        context.log_event(_upgraded(spec, client, record))

    return switch


def upgrade(client: JobClient, config: UpgradeConfig, say: upgrading.Say) -> UpgradeRecord:
    """Switches to the new version, or carries on a switch that an earlier run or command has begun."""
    if (begun := upgrading.unfinished(client)) is not None:
        return upgrading.carry_on_begun(client, begun, config.to, say, config.timeout_s)
    launch = upgrading.new_launch(client, config.version)
    upgrading.check(upgrading.plan(client, launch), launch)  # the job may have been changed since the dry run
    return upgrading.switch(client, launch, BY, say, config.timeout_s)


def _upgraded(spec: StreamSpec, client: JobClient, record: UpgradeRecord) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        spec.stream_key,
        description=record.in_words(spec.job),
        metadata={
            STORE: client.store,
            "outcome": f"upgraded from {record.old.path} to {record.new.path} behind epoch {record.progress.cut}",
            "savepoint": record.savepoint,
            "seconds": round((record.changed_ms - record.began_ms) / 1000, 1),
            "log": dg.MetadataValue.path(str(client.folder.log_file)),
            **describe(client),
        },
    )


def rehearsal_check(spec: StreamSpec) -> dg.AssetChecksDefinition:
    """Returns the check of the newest rehearsal. Runs of `<job>_upgrade` report it; by hand it shows that one again."""

    @dg.asset_check(
        asset=spec.rehearsals_key,
        name=SAME_OUTPUT,
        description="the new version writes the rows that the old one writes",
    )
    def same_output(context: dg.AssetCheckExecutionContext, weir: WeirStore) -> dg.AssetCheckResult:
        from checks.rehearsal import last_rehearsal

        with readable_errors():
            result = last_rehearsal(weir.client(context.instance, spec))
        if result.verdict is Verdict.COULD_NOT_RUN:
            raise dg.Failure(why_not_switch(result, False), allow_retries=False)
        return dg.AssetCheckResult(
            passed=result.verdict is Verdict.PASSED,
            description=in_words(result),
            metadata=check_metadata(result),
        )

    return same_output
