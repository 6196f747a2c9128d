"""The asset `drills/<job>`: materializing it drills a copy of the job; its asset checks are the verdict of the audit.

The drill runs a bounded copy of the job in a store of its own, so it does not touch the running job. It uses another
pool: only one drill runs at a time on a machine. A check that could not run reports nothing: Dagster shows it as
"execution failed", which is neither pass nor fail. A red check, and one that could not run, fail the run, after all
others are reported: whoever watches runs hears of it. A warning does not. The asset has a partition for each fault of
the catalogue: with one such asset per job Dagster shows the matrix of faults and jobs.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
import msgspec
from pydantic import Field

from checks.catalogue import CATALOGUE, RANDOM, USUAL, choose
from checks.drilled import DrillFailed
from checks.records import drills_folder, keep, no_verdict, record_of
from checks.report import REPORT, write_report
from checks.results import AuditResult, CheckResult, DrillResult, Verdict
from checks.spec import AUDIT_CHECKS, DRILLS_KEPT
from engine.core.errors import WeirError
from orchestration.metadata import data_docs, page_link, rows_table
from orchestration.resources import WeirStore, metadata_of, readable_errors
from orchestration.spark_config import SparkConfig
from orchestration.spec import StreamSpec

POOL = "weir_drills"
READER = "reader_saw_whole_epochs"
DRILL = "drill"
DRILLED = "drilled"
FAULTS = dg.StaticPartitionsDefinition([*CATALOGUE, RANDOM])
MAIN_FIGURES = ("lost", "duplicated", "recovery_s")

CHECKS = {
    READER: "a reader, which read the tables all the time, never saw part of an epoch nor went back to an older one",
    **AUDIT_CHECKS,
}


class DrillConfig(SparkConfig):
    """The config of a drill. Its copy of the job runs on the Spark of the job's spec, unless it says otherwise."""

    faults: list[str] = Field(
        default=[],
        description="faults that strike one after the other: names of partitions; none: that of the partition",
    )
    records: int | None = Field(
        default=None,
        description="records to read (default: 100,000, 100,000 more per fault, and those that pass while it lasts)",
    )
    seed: int | None = Field(default=None, description="decides what is struck and when (default: random)")


def drill_asset(spec: StreamSpec) -> dg.AssetsDefinition:
    drill = spec.drill
    assert drill is not None

    @dg.asset(
        key=spec.drills_key,
        deps=[spec.stream_key],
        description=f"Breaks a copy of {spec.job}; the checks say whether rows were lost or doubled.",
        group_name="drills",
        tags=spec.tags,
        owners=list(spec.owners),
        kinds={"spark", "great_expectations"},
        pool=POOL,
        partitions_def=FAULTS,
    )
    def run(context: dg.AssetExecutionContext, config: DrillConfig, weir: WeirStore) -> dg.MaterializeResult[None]:
        from checks.drill import run_drill

        seed = secrets.randbelow(1_000_000) if config.seed is None else config.seed
        faults = config.faults or [context.partition_key if context.has_partition_key else USUAL]
        started_ms = time.time_ns() // 1_000_000
        with readable_errors():
            names = [fault.name for fault in choose(faults, seed)]
            try:
                result = run_drill(
                    drill,
                    weir.path,
                    seed=seed,
                    faults=faults,
                    records=config.records,
                    spark=config.spark_over(spec.options),
                    progress=context.log.info,
                )
            except DrillFailed as error:
                keep(weir.path, spec.job, no_verdict(started_ms, seed, names, str(error), run=context.run.run_id))
                write_report(weir.path, spec.job)
                raise
        return dg.MaterializeResult(
            metadata={
                "records": result.records,
                "faults": dg.MetadataValue.text(", ".join(result.names)),
                "victims": dg.MetadataValue.text(", ".join(map(str, result.faults))),
                "struck": rows_table([msgspec.to_builtins(struck) for struck in result.faults]),
                "recovery_s": result.recovery_s,
                **recoveries(result),
                "restarts": result.restarts,
                "checkpoints": result.checkpoints,
                "reader_reads": result.reader_reads,
                "duration_s": result.duration_s,
                "seed": dg.MetadataValue.text(str(seed)),
                "folder": dg.MetadataValue.path(result.store),
                DRILL: dg.MetadataValue.json(msgspec.to_builtins(result)),
            }
        )

    return run


def recoveries(drill: DrillResult) -> dict[str, float]:
    """Returns the longest recovery from each fault, under a name of its own: Dagster plots them from drill to drill."""
    longest: dict[str, float] = {}
    for struck in drill.faults:
        name = f"recovery_s: {struck.fault}"
        longest[name] = max(longest.get(name, 0.0), struck.recovery_s)
    return longest


def audit_checks(spec: StreamSpec) -> dg.AssetChecksDefinition:
    drill = spec.drill
    assert drill is not None
    specs = [dg.AssetCheckSpec(name, asset=spec.drills_key, description=text) for name, text in CHECKS.items()]

    @dg.multi_asset_check(name=f"audit_{spec.job}", specs=specs, can_subset=True, pool=POOL)
    def audit(context: dg.AssetCheckExecutionContext, weir: WeirStore) -> Iterator[dg.AssetCheckResult]:
        from checks.audit import run_audit

        wanted = {key.name for key in context.selected_asset_check_keys}
        with readable_errors():
            done = last_drill(context.instance, spec, context.run.run_id)
        result = run_audit(drill, done.store, progress=context.log.info)
        context.op_execution_context.log_event(verdict_observation(spec, done, result, weir.path))
        keep(weir.path, spec.job, record_of(done, result, run=context.run.run_id))
        write_report(weir.path, spec.job)
        proved = proves(spec, result.verdict.value)
        context.instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(
                asset_key=spec.stream_key,
                check_name=DRILLED,
                passed=proved.passed,
                severity=proved.severity,
                description=proved.description,
                metadata=proved.metadata,
            )
        )
        checks = [c for c in (judged_reader(done), *result.checks) if c.name in wanted]
        for check in checks:
            if check.verdict is not Verdict.COULD_NOT_RUN:
                yield as_result(spec, check, result, done)
        if said := why_failed(checks):
            raise dg.Failure(said, allow_retries=False)

    return audit


def drilled_check(spec: StreamSpec) -> dg.AssetChecksDefinition:
    """Returns the check of the stream that says what its newest drill has proved. It reads the verdict only.

    The checks of the audit are those of `drills/<job>`: on an asset that is materialized again and again, as the tables
    are, their results would disappear.
    """

    @dg.asset_check(
        asset=spec.stream_key,
        name=DRILLED,
        description="the newest drill of the job was audited, and no row was lost, doubled or half read",
    )
    def drilled(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        observed = context.instance.fetch_observations(spec.drills_key, limit=1).records
        seen = observed[0].asset_observation if observed else None
        return proves(spec, str(seen.metadata["verdict"].value) if seen is not None else None)

    return drilled


def proves(spec: StreamSpec, verdict: str | None) -> dg.AssetCheckResult:
    """Returns what the verdict of an audit says of the job. None: there is no verdict yet, which is only a warning."""
    red = verdict == Verdict.FAILED.value
    says = f"the audit of the newest drill: {verdict}" if verdict else f"never drilled: materialize drills/{spec.job}"
    return dg.AssetCheckResult(
        passed=verdict == Verdict.PASSED.value,
        severity=dg.AssetCheckSeverity.ERROR if red else dg.AssetCheckSeverity.WARN,
        description=says,
        metadata={"drill": dg.MetadataValue.asset(spec.drills_key)},
    )


def why_failed(checks: Sequence[CheckResult]) -> str:
    """Returns why the run of an audit fails; empty if all checks passed or only warn."""
    red = [check for check in checks if check.verdict is Verdict.FAILED and not check.only_warns]
    broken = [check for check in checks if check.verdict is Verdict.COULD_NOT_RUN]
    said = []
    no_verdict = "the audit could not run, which says nothing about the data"
    for found, what in ((red, "the audit failed"), (broken, no_verdict)):
        if found:
            said += [f"{what}:", *(f"{check.name}: {check.summary}" for check in found)]
    return "\n".join(said)


def last_drill(instance: dg.DagsterInstance, spec: StreamSpec, run: str) -> DrillResult:
    """Returns the drill of this run, or the newest one: another may have ended since."""
    own = dg.AssetRecordsFilter(asset_key=spec.drills_key)
    newest = instance.fetch_materializations(own, limit=20).records
    of_run = next((one for one in newest if one.run_id == run), newest[0] if newest else None)
    found = metadata_of(of_run.event_log_entry if of_run is not None else None).get(DRILL)
    if found is None:
        raise WeirError(f"there is no drill of {spec.job} to audit yet: materialize drills/{spec.job}")
    return msgspec.convert(found, DrillResult)


def judged_reader(drill: DrillResult) -> CheckResult:
    wrong = drill.reader_violations
    if not wrong:
        return CheckResult(READER, Verdict.PASSED, f"{drill.reader_reads} reads, each of whole epochs")
    return CheckResult(READER, Verdict.FAILED, wrong[0], len(wrong), [{"violation": text} for text in wrong])


def as_result(spec: StreamSpec, check: CheckResult, audit: AuditResult, drill: DrillResult) -> dg.AssetCheckResult:
    rows = {"rows": rows_table(check.rows)} if check.rows else {}
    main = {name: value for name, value in figures(audit, drill).items() if name in MAIN_FIGURES}
    return dg.AssetCheckResult(
        asset_key=spec.drills_key,
        check_name=check.name,
        passed=check.verdict is Verdict.PASSED,
        severity=dg.AssetCheckSeverity.WARN if check.only_warns else dg.AssetCheckSeverity.ERROR,
        description=check.summary,
        metadata={
            "unexpected": check.unexpected,
            **rows,
            **main,
            "verdicts": verdict_table(audit, drill),
        },
    )


def verdict_observation(spec: StreamSpec, drill: DrillResult, audit: AuditResult, store: str) -> dg.AssetObservation:
    """Returns the figures as an observation of the asset, where Dagster plots them from drill to drill."""
    return dg.AssetObservation(
        spec.drills_key,
        description=f"audit: {audit.verdict.value}",
        metadata={
            "verdict": audit.verdict.value,
            "verdicts": verdict_table(audit, drill),
            **figures(audit, drill),
            **data_docs(audit.data_docs, store),
            **page_link("report", str(drills_folder(store, spec.job) / REPORT), store),
        },
    )


def figures(audit: AuditResult, drill: DrillResult) -> dict[str, float]:
    """Returns the numbers that Dagster plots: those of the audit (lost, duplicated, …) and the recoveries."""
    return {**audit.figures, "recovery_s": drill.recovery_s, **recoveries(drill)}


def verdict_table(audit: AuditResult, drill: DrillResult) -> dg.TableMetadataValue:
    rows = [
        {"check": c.name, "verdict": c.verdict.value, "unexpected": c.unexpected, "says": c.summary}
        for c in (judged_reader(drill), *audit.checks)
    ]
    return rows_table(rows)


def drill_job(spec: StreamSpec) -> Any:
    return dg.define_asset_job(
        f"{spec.job}_drill",
        selection=dg.AssetSelection.assets(spec.drills_key),
        description=f"Drill a copy of {spec.job}, then audit the tables that it wrote.",
    )


def drill_schedule(spec: StreamSpec, job: Any) -> dg.ScheduleDefinition:
    return dg.ScheduleDefinition(
        name=f"{spec.job}_drills",
        cron_schedule=spec.drill_cron,
        job=job,
        execution_fn=lambda _: dg.RunRequest(partition_key=RANDOM),
        description=f"Drills a copy of {spec.job} with a random fault, and audits it. Keeps {DRILLS_KEPT} folders.",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
