"""Draws the live view of a job: rates, watermarks, lag and back pressure of each vertex, and the last checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from engine.cli.tables import Rows
from engine.jobmaster.gatekeeper import HeldEpoch
from engine.jobmaster.status import Flow, JobStatus, VertexStatus
from engine.protocol.messages import LongStep

_BAR = 6
FLOW = ("in/s", "out/s", "watermark", "lag", "busy·held·idle %")
"""The columns of a vertex or a subtask. Rates are rows per second; held: back-pressured."""
NUMBERS = ("slot", "in/s", "out/s", "lag")


def render(status: JobStatus, note: str = "", *, framed: bool = True) -> RenderableType:
    """Returns the view. A frame is as wide as the terminal, so there is none where there is no terminal."""
    head = Text.assemble(
        (status.job, "bold"),
        "  ",
        (status.phase.value, "green" if status.running else "yellow"),
        f" ({slots_line(status)})",
        f"  generation {status.generation}, attempt {status.attempt}, restarts {status.restarts}"
        f"  ·  up {span(status.uptime_ms)}  ·  {status.guarantee}",
    )
    table = Rows("operator", *FLOW, wrap="operator", right=NUMBERS)
    for vertex in status.vertices:
        table.add(
            f"{vertex.label} ×{vertex.parallelism}",
            count(vertex.rows_in_per_s),
            count(vertex.rows_out_per_s),
            instant(vertex.watermark_ms),
            span(vertex.lag_ms),
            shares(vertex),
        )
    parts: list[RenderableType] = [head, table, Text(checkpoint_line(status), style="cyan")]
    parts += [Text(held_line(status.job, one), style="bold yellow") for one in status.held]
    if lost := lost_line(status):
        parts.append(Text(lost, style="yellow"))
    parts += [Text(waiting, style="cyan") for vertex in status.vertices if (waiting := alignment_line(vertex))]
    if status.refusal:
        parts.append(Text(f"a slot was refused: {status.refusal}", style="bold yellow"))
    for slot in status.slots:
        if slot.slow_step is not None:
            parts.append(Text(slow_line(slot.slot, slot.slow_step), style="bold yellow"))
    if (failure := status.last_failure) is not None:
        parts.append(Text(f"last failure: {failure.cause}: {failure.detail}", style="yellow"))
        if failure.raised is not None and failure.raised.traceback:
            parts.append(Text(failure.raised.traceback.rstrip(), style="bright_black"))
    if status.jobmaster_deaths:
        died = f"JobMasters that died: {status.jobmaster_deaths}, the last by: {status.last_death}"
        parts.append(Text(died, style="yellow"))
    if status.standby is not None:
        parts.append(Text(f"standby: {status.standby.doing}", style="cyan" if status.standby.ready else "yellow"))
    if note:
        parts.append(Text(note, style="bold magenta"))
    view = Group(*parts)
    return Panel(view, title="weir", title_align="left", border_style="blue") if framed else view


def slots_line(status: JobStatus) -> str:
    count_of = f"{len(status.slots)} of {status.slots_needed} slots"
    if status.connecting:
        return f"{count_of}; waiting for the channels of slot {', '.join(map(str, status.connecting))}"
    return count_of if status.waiting_ms is None else f"registered {count_of} after {status.waiting_ms / 1000:.0f} s"


def slow_line(slot: int | None, step: LongStep) -> str:
    """Says where a task thread has been for long: the operator, and the two last lines of its stack."""
    where = f" in operator {step.uid!r} ({step.subtask})" if step.uid else ""
    stack = " ".join(line.strip() for line in step.stack.strip().splitlines()[-2:])
    return f"slot {slot} has been in one step for {step.for_ms / 1000:.0f} s{where}: {stack}"


def checkpoint_line(status: JobStatus) -> str:
    last = status.checkpoints.last
    if last is None:
        return "no checkpoint yet"
    if last.sync_ms is None or last.state_bytes is None:  # its JobMaster died before it could say more
        return f"checkpoint {last.checkpoint} → epoch {last.epoch}"
    rows = ", ".join(f"{uid} {count(n)}" for uid, n in status.committed_rows.items())
    return (
        f"checkpoint {last.checkpoint} → epoch {last.epoch} in {last.duration_ms:.0f} ms (alignment "
        f"{last.alignment_ms:.0f}, sync {last.sync_ms:.0f}, async {last.async_ms:.0f}), "
        f"{size(last.state_bytes)}; {status.checkpoints.completed} completed, "
        f"{status.checkpoints.failed} failed; rows committed: {rows}"
    )


def held_line(job: str, held: HeldEpoch) -> str:
    """Says that a commit gate holds an epoch, and what to do."""
    since = instant(held.since_ms)
    return (
        f"epoch {held.epoch} is held by the gate of {held.sink} since {since}: {held.why}; weir gate {job} shows more"
    )


def lost_line(status: JobStatus) -> str:
    """Says how many records are in no result, by the operator that left them out."""
    kinds = (
        ("late, dropped by", status.late_rows),
        ("without an event time, dropped by", status.untimed_rows),
        ("malformed, from", status.malformed_rows),
        ("that could not be processed, left out by", status.failed_rows),
        ("withheld by the gate of", status.withheld_rows),
    )
    return "; ".join(f"rows {what} {uid}: {count(n)}" for what, by_uid in kinds for uid, n in by_uid.items() if n)


def alignment_line(vertex: VertexStatus) -> str:
    """Says that a source waits for the others of its alignment group, and how far it is ahead of them."""
    waits = [subtask.waits for subtask in vertex.subtasks if subtask.waits is not None]
    if not waits:
        return ""
    drifts = [wait.drift_ms for wait in waits if wait.drift_ms is not None]
    ahead = f"{span(max(drifts))} ahead of the slowest of" if drifts else "until the others have begun, in"
    return (
        f"{vertex.id} is waiting for alignment: {sum(wait.paused for wait in waits)} of its splits, {ahead} group "
        f"{waits[0].group!r} (allowed: {span(waits[0].max_drift_ms)})"
    )


def plain_line(status: JobStatus) -> str:
    """Returns one line per update, for an output that is not a terminal."""
    if not status.running:
        return f"{status.phase.value} ({slots_line(status)})"
    rows = status.vertices[0].rows_in_per_s
    return f"{status.phase.value}  {count(rows)} rows/s in  {checkpoint_line(status)}"


def shares(flow: Flow) -> Text:
    """Draws how a vertex or a subtask spent its last seconds."""
    parts = ((flow.busy, "green"), (flow.back_pressured, "red"), (flow.idle, "bright_black"))
    bar = Text()
    if any(share for share, _ in parts):
        for share, colour in parts:
            bar.append("█" * round(_BAR * share), style=colour)
        bar.append(" " + "·".join(f"{100 * share:.0f}" for share, _ in parts))
    return bar


def count(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1000 if unit == 'k' else limit):.3g} {unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:.0f} B"


def span(value_ms: float | None) -> str:
    if value_ms is None:
        return "–"
    for limit, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if abs(value_ms) >= limit:
            return f"{value_ms / limit:.1f} {unit}"
    return f"{value_ms:.0f} ms"


def instant(value_ms: int | None) -> str:
    """Returns the time of day in UTC, with the date if it is not today's."""
    if value_ms is None:
        return "–"
    at = datetime.fromtimestamp(value_ms / 1000, UTC)
    return at.strftime("%H:%M:%S" if at.date() == datetime.now(UTC).date() else "%m-%d %H:%M:%S")
