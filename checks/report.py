"""The report on a job's drills: one page, a file that needs no server, no script and no internet.

It has the matrix of faults with the last verdict of each, its age and recoveries against their target, the trend of all
recoveries, and every drill with its blows. It is made anew after each drill, from the records that are kept of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from checks.docs import badge, escaped, page
from checks.records import DrillRecord, FaultFigures, drills_folder, figures_of, read_records, recoveries_s, totals_of
from checks.results import Verdict

REPORT = "report.html"
SHOWN = 200
"""The newest drills are listed; figures and trend have all of them."""
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 1100, 300, 60, 16, 28


def write_report(store: str | Path, job: str) -> Path:
    """Makes the page of a job anew, and returns its path."""
    folder = drills_folder(store, job)
    records = read_records(store, job)
    audited = {record.id for record in records if (folder / record.page).is_file()}
    draft = folder / f".{REPORT}"
    draft.write_text(report(job, records, audited, time.time_ns() // 1_000_000))
    return draft.replace(folder / REPORT)


def report(job: str, records: Sequence[DrillRecord], audited: set[str], now_ms: int) -> str:
    """Returns the page. `audited`: the drills that have Data Docs."""
    totals = totals_of(records)
    said = (
        f"{totals.drills} drills, {totals.strikes} faults: lost {totals.lost}, doubled {totals.doubled}, partial reads "
        f"{totals.partial_reads}; {totals.failed} drills red, {totals.without_verdict} without a verdict. "
        f"Made at {_moment(now_ms)}."
    )
    newest = list(reversed(records))[:SHOWN]
    body = [
        f"<h1>Drills of {escaped(job)}</h1><p>{escaped(said)}</p>",
        "<h2>Recovery against its target</h2>",
        "<p>Each point is a recovery from a fault, as a share of the target of that fault; above the line it took "
        "longer. Oldest on the left.</p>",
        f'<div id="trend">{trend(records)}</div>',
        f"<h2>Faults</h2>{_matrix(figures_of(records), now_ms)}",
        f"<h2>Drills</h2>{''.join(_drill(record, record.id in audited) for record in newest)}",
    ]
    return page(f"drills of {job}", "\n".join(body))


def _matrix(figures: Sequence[FaultFigures], now_ms: int) -> str:
    heads = ("fault", "last verdict", "age", "drills", "red", "no verdict", "p50", "p99", "target", "trend")
    rows = "".join(_row(one, now_ms) for one in figures)
    return f'<table class="matrix"><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr>{rows}</table>'


def _row(one: FaultFigures, now_ms: int) -> str:
    last = badge(one.last.verdict) if one.last is not None else "never drilled"
    age = _age(now_ms - one.last.at_ms) if one.last is not None else ""
    cells = (
        f"<code>{escaped(one.fault)}</code>",
        last,
        age,
        str(one.drills),
        str(one.failed),
        str(one.without_verdict),
        _seconds(one.recovery_s(0.5)),
        _seconds(one.recovery_s(0.99)),
        _seconds(one.target_s),
        _spark(one),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _spark(one: FaultFigures) -> str:
    """Returns the recoveries of one fault as a line, and their target as a dashed one."""
    values = one.recoveries_s[-40:]
    if not values:
        return ""
    top = max(*values, one.target_s) * 1.1

    def y(value: float) -> float:
        return 26 - 24 * value / top

    step = 150 / max(1, len(values) - 1)
    points = " ".join(f"{5 + i * step:.1f},{y(value):.1f}" for i, value in enumerate(values))
    dots = "".join(
        f'<circle cx="{5 + i * step:.1f}" cy="{y(v):.1f}" r="2" class="{"late" if v > one.target_s else "good"}"/>'
        for i, v in enumerate(values)
    )
    target = f'<line x1="0" x2="160" y1="{y(one.target_s):.1f}" y2="{y(one.target_s):.1f}" class="target"/>'
    line = f'<polyline points="{points}" class="line"/>'
    return f'<svg width="160" height="28" role="img" aria-label="recoveries">{target}{line}{dots}</svg>'


def trend(records: Sequence[DrillRecord]) -> str:
    """Returns a picture of all recoveries as shares of their targets, on a logarithmic scale. It is an SVG."""
    targets = {one.fault: one.target_s for one in figures_of(())}
    shares = [
        (name, recovery, recovery / targets[name])
        for record in records
        for name in dict.fromkeys(record.faults)
        if name in targets and record.verdict is not Verdict.COULD_NOT_RUN
        for recovery in recoveries_s(record, name)
    ]
    low, high = 0.03, max([10.0, *(share for _, _, share in shares)])

    def y(share: float) -> float:
        part = math.log(max(share, low) / low) / math.log(high / low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    step = (_WIDTH - _LEFT - 20) / max(1, len(shares) - 1)
    marks, dots = "", ""
    for at in (0.1, 1, 10):
        kind = "target" if at == 1 else "grid"
        marks += f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y(at):.1f}" y2="{y(at):.1f}" class="{kind}"/>'
        marks += f'<text x="{_LEFT - 8}" y="{y(at) + 4:.1f}" text-anchor="end">{at:g}×</text>'
    for i, (name, recovery, share) in enumerate(shares):
        kind, said = "late" if share > 1 else "good", f"{name}: {recovery:.1f} s, target {targets[name]:.0f} s"
        dots += f'<circle cx="{_LEFT + 10 + i * step:.1f}" cy="{y(share):.1f}" r="3.5" class="{kind}">'
        dots += f"<title>{escaped(said)}</title></circle>"
    caption = f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{len(shares)} recoveries, oldest on the left</text>'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img" aria-label="recoveries against their targets">'
        f"{marks}{dots}{caption}</svg>"
    )


def _drill(record: DrillRecord, audited: bool) -> str:
    where = "the live job" if record.live else "a copy of the job"
    reader = f"{record.reads} reads, {record.partial_reads} of them wrong" if record.reads else "no reader"
    counted = f"lost {record.lost}, doubled {record.doubled}" if record.lost is not None else "rows not counted"
    links = [f'<a href="{escaped(record.page)}">Data Docs</a>'] if audited else []
    links += [f'<a href="/runs/{escaped(record.run)}">run {escaped(record.run[:8])}</a>'] if record.run else []
    told = " · ".join([escaped(f"seed {record.seed}"), where, reader, counted, *links])
    why = f"<p>{escaped(record.why)}</p>" if record.why else ""
    head = f"<h3>{_moment(record.at_ms)} {badge(record.verdict)}: {escaped(', '.join(record.faults))}</h3>"
    if not record.blows:
        return f"{head}<p>{told}</p>{why}"
    heads = ("fault", "victim", "moment", "epoch", "attempt", "cause", "recovery")
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{escaped(cell)}</td>"
            for cell in (
                blow.fault,
                f"{blow.victim if blow.slot is None else f'slot {blow.slot}'}, process {blow.pid}"
                + (f", at {blow.point}" if blow.point else ""),
                _moment(blow.at_ms),
                blow.epoch,
                f"{blow.attempt} → {blow.after}",
                blow.cause or "the job went on",
                _seconds(blow.recovery_s),
            )
        )
        + "</tr>"
        for blow in record.blows
    )
    table = f"<table><tr>{''.join(f'<th>{name}</th>' for name in heads)}</tr>{rows}</table>"
    return f"{head}<p>{told}</p>{why}{table}"


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _age(age_ms: int) -> str:
    seconds = max(0, age_ms) // 1000
    size, unit = next(((size, unit) for size, unit in _AGES if seconds >= size), (1, "s"))
    return f"{seconds // size} {unit}"


def _seconds(value: float | None) -> str:
    return f"{value:.1f} s" if value is not None else ""
