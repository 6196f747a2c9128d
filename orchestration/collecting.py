"""The job `<job>_gc`: deletes what replaced JobMasters of a stream left behind, as `weir gc` does."""

import dagster as dg
from pydantic import Field

from engine.jobmaster.collecting import collect
from engine.store.opening import open_store
from orchestration.metadata import rows_table
from orchestration.resources import WeirStore, readable_errors
from orchestration.spec import StreamSpec


class CollectConfig(dg.Config):
    """What becomes of what is found."""

    dry_run: bool = Field(default=False, description="only say what would be deleted")


def gc_job(spec: StreamSpec) -> dg.JobDefinition:
    @dg.op(name=f"gc_{spec.job}", description="Looks for what nobody needs, and deletes it. It needs no pool.")
    def gc(context: dg.OpExecutionContext, config: CollectConfig, weir: WeirStore) -> None:
        client = weir.client(context.instance, spec)
        with readable_errors():
            ended = client.ended() is not None
            found = collect(open_store(client.store), spec.job, dry_run=config.dry_run, ended=ended)
        said = "would be deleted" if config.dry_run else "deleted"
        for part in found.collected:
            context.log.info(f"{said}: {part.path}: {part.why}, {part.files} files, {part.bytes} bytes")
        for path in found.completed:
            context.log.info(f"{'would be completed' if config.dry_run else 'completed'}: {path}, a savepoint")
        context.log.info(f"{sum(part.files for part in found.collected)} files {said}, {found.bytes} bytes")
        if found.problems:
            raise dg.Failure("\n".join(found.problems), allow_retries=False)
        rows = [{"path": p.path, "why": p.why, "files": p.files, "bytes": p.bytes} for p in found.collected]
        context.add_output_metadata({"bytes": found.bytes, **({"collected": rows_table(rows)} if rows else {})})

    @dg.job(
        name=f"{spec.job}_gc",
        description=f"Delete what killed JobMasters of {spec.job} left half-made. It is safe while the job runs; "
        "epochs and complete savepoints are never touched.",
    )
    def gc_stream() -> None:
        gc()

    return gc_stream
