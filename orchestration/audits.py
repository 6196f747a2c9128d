"""The asset `audits/<job>`: materializing it audits the live tables of the job; its checks are the verdict.

The audit reads tables, history and its own record, and needs nothing of the job but its store, so it takes no place in
the job's pool. It has its own asset: the checks of one that the sensor materializes per checkpoint would disappear with
the next checkpoint. As with drills, a red check, and one that could not run, fail the run after all are reported.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import dagster as dg
from pydantic import Field

from checks.live.look import LIVE_CHECKS, WITHIN
from checks.results import AuditResult, CheckResult, Verdict
from engine.core.errors import NotRunning
from orchestration.drills import POOL, why_failed
from orchestration.lineage import Lineage
from orchestration.metadata import data_docs, rows_table
from orchestration.resources import WeirStore, readable_errors
from orchestration.spec import StreamSpec


class AuditConfig(dg.Config):
    """The config of an audit."""

    within: int = Field(default=WITHIN, ge=1, description="number of audits within which each file is read again")
    full: bool = Field(default=False, description="read all files of the tables now")


def audit_asset(spec: StreamSpec, lineage: Lineage) -> dg.AssetsDefinition:
    @dg.asset(
        key=spec.audits_key,
        deps=[output.key for output in lineage.outputs if output.is_table] or [spec.stream_key],
        description=f"Materialize this asset to audit the live tables of {spec.job}. All new epochs are compared with "
        f"the job's ledger, and each older file is read again within {WITHIN} audits.",
        group_name="audits",
        tags=spec.tags,
        owners=list(spec.owners),
        kinds={"spark", "great_expectations"},
        check_specs=[
            dg.AssetCheckSpec(name, asset=spec.audits_key, description=text) for name, text in LIVE_CHECKS.items()
        ],
        pool=POOL,
    )
    def audit(context: dg.AssetExecutionContext, config: AuditConfig, weir: WeirStore) -> Iterator[Any]:
        from checks.live.audit import run_live_audit

        store = weir.of(context.instance, spec)
        with readable_errors():
            result = run_live_audit(store, spec.job, within=config.within, full=config.full, progress=context.log.info)
        yield dg.MaterializeResult(metadata=metadata(result, store))
        for check in result.checks:
            if check.verdict is not Verdict.COULD_NOT_RUN:
                yield as_result(spec, check)
        if said := why_failed(result.checks):
            raise dg.Failure(said, allow_retries=False)

    return audit


def metadata(result: AuditResult, store: str) -> dict[str, Any]:
    rows = [{"check": c.name, "verdict": c.verdict.value, "says": c.summary} for c in result.checks]
    return {
        "verdict": result.verdict.value,
        "verdicts": rows_table(rows),
        "epoch": dg.MetadataValue.text(str(result.epoch)),
        **result.figures,
        **data_docs(result.data_docs, store),
    }


def as_result(spec: StreamSpec, check: CheckResult) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=spec.audits_key,
        check_name=check.name,
        passed=check.verdict is Verdict.PASSED,
        description=check.summary,
        metadata={"unexpected": check.unexpected, **({"rows": rows_table(check.rows)} if check.rows else {})},
    )


def audit_job(spec: StreamSpec) -> Any:
    return dg.define_asset_job(
        f"{spec.job}_audit",
        selection=dg.AssetSelection.assets(spec.audits_key),
        description=f"Audit the live tables of {spec.job}, whether or not it runs.",
    )


def audit_schedule(spec: StreamSpec, job: Any) -> dg.ScheduleDefinition:
    assert spec.audit_cron is not None

    @dg.schedule(
        name=f"{spec.job}_audits",
        cron_schedule=spec.audit_cron,
        job=job,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Audits the live tables of {spec.job}, whether or not it runs.",
    )
    def audits(context: dg.ScheduleEvaluationContext, weir: WeirStore) -> dg.RunRequest | dg.SkipReason:
        with suppress(NotRunning):  # it was never started
            if weir.client(context.instance, spec).timeline().last_completed is not None:
                return dg.RunRequest()
        return dg.SkipReason(f"{spec.job} has published no epoch yet: there is nothing to audit")

    return audits
