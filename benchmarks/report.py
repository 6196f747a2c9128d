"""Writes results/latest.json and latest.png, and the table in docs/benchmarks.md and on the terminal."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.weir import ROOT

Say = Callable[[str], None]
"""Shows a line of progress to the user."""

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: written by make bench -->", "<!-- end of results -->"

_ORDER = [
    "window",
    "window_files",
    "row_lane",
    "timers",
    "sliding_rows",
    "growth",
    "checkpoint_cost",
    "latency_ms",
    "latency_columnar_ms",
    "recovery_s",
    "takeover_s",
    "takeover_standby_s",
    "memory_stuck_sink",
    "rescale",
    "savepoint",
    "savepoint_memory",
    "savepoint_minio",
    "scale",
    "table_log",
]


@dataclass(frozen=True)
class Result:
    """One line of the table. `ratio` says how many times better Weir is than the peer, for any unit."""

    bench: str
    peer: str | None
    weir: float
    peer_value: float | None
    unit: str
    ratio: float | None
    note: str
    target: str
    reached: bool
    others_cores: float = 0.0
    """Cores that processes outside of the benchmark used meanwhile."""
    runs: dict[str, Any] = field(default_factory=dict)


def versions() -> dict[str, str]:
    packages = ("pyspark", "pyarrow", "numpy", "polars")
    return {"weir": version("weir"), "python": platform.python_version()} | {name: version(name) for name in packages}


def machine() -> dict[str, Any]:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory_kb = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory_kb.group(1)) / 1e6) if memory_kb else None,
    }


def stamp() -> dict[str, Any]:
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions(), "machine": machine()}


def write(results: list[Result]) -> list[dict[str, Any]]:
    """Writes file, plot and page after each bench: its new lines replace its older ones, other lines stay."""
    fresh = [asdict(result) | stamp() for result in results]
    ran = {result.bench for result in results}
    path = RESULTS / "latest.json"
    old = json.loads(path.read_text()) if path.exists() else []
    lines = sorted([*fresh, *(line for line in old if line["bench"] not in ran)], key=_position)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(lines, indent=2, ensure_ascii=False) + "\n")
    plot(lines, RESULTS / "latest.png")
    _into_page(lines)
    return lines


def _position(line: dict[str, Any]) -> tuple[int, str]:
    bench = line["bench"]
    return _ORDER.index(bench) if bench in _ORDER else len(_ORDER), str(line["peer"])


# --- for people ---


def show(lines: list[dict[str, Any]], console: Console) -> None:
    """Prints the table, narrow enough for a terminal, and then what each figure means."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, caption=_where(lines), caption_justify="left")
    for heading in ("bench", "Weir", "peer", "peer's", "ratio", "target"):
        table.add_column(heading, justify="right" if heading in ("Weir", "peer's", "ratio") else "left", no_wrap=True)
    for line in lines:
        *cells, target = _cells(line)
        table.add_row(*cells, f"[green]{target} ✓[/green]" if line["reached"] else f"[red]{target} ✗[/red]")
    console.print(table)
    for line in lines:
        name = f"{line['bench']}, {line['peer']}" if line["peer"] else line["bench"]
        console.print(f"[bold]{name}[/bold]: {line['note']}.{_rough(line)}", highlight=False)


def _cells(line: dict[str, Any]) -> list[str]:
    unit = line["unit"]
    return [
        line["bench"],
        quantity(line["weir"], unit),
        (line["peer"] or "–").replace("weir-without-checkpoints", "without"),
        "–" if line["peer_value"] is None else quantity(line["peer_value"], unit),
        "–" if line["ratio"] is None else f"{line['ratio']:.2f}×",
        line["target"],
    ]


def quantity(value: float, unit: str) -> str:
    if unit == "rows/s":
        return f"{value / 1e6:.2f} M/s" if value >= 100_000 else f"{value / 1e3:.1f} k/s"
    return f"{value:.1f} {unit}" if unit in ("ms", "MB", "MB/s") else f"{value:.2f} {unit}"


def _where(lines: list[dict[str, Any]]) -> str:
    """Returns all dates and machines of the lines: lines of older runs stay, so there may be several."""
    return "; also ".join(dict.fromkeys(where(line) for line in lines))


def where(stamped: dict[str, Any]) -> str:
    found, ran_on = stamped["versions"], stamped["machine"]
    return (
        f"{stamped['date'][:10]}; {ran_on['cores']} cores of {ran_on['cpu']}, {ran_on['memory_gb']} GB; "
        f"Spark {found['pyspark']}, Arrow {found['pyarrow']}, Python {found['python']}"
    )


def _rough(line: dict[str, Any]) -> str:
    if line.get("others_cores", 0) < 0.1:
        return ""
    return f" Rough: other processes took {line['others_cores']:.1f} of {line['machine']['cores']} cores meanwhile."


def _into_page(lines: list[dict[str, Any]]) -> None:
    """Writes the table between the markers of docs/benchmarks.md."""
    if not PAGE.exists():
        return
    rows = [
        "| bench | Weir | peer | the peer's | ratio | target | reached |",
        "|---|---:|---|---:|---:|---|---|",
        *(f"| {' | '.join(_cells(line))} | {'yes' if line['reached'] else '**no**'} |" for line in lines),
        "",
        _where(lines) + ".",
        "",
        *(f"- **{line['bench']}**, {line['peer'] or 'no peer'}: {line['note']}.{_rough(line)}" for line in lines),
    ]
    between_markers(PAGE, rows)


def between_markers(page: Path, rows: list[str], begin: str = BEGIN, end: str = END) -> None:
    """Replaces the text between two markers of a page; the rest, which people write, stays."""
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text("\n".join([before + begin, "", *rows, "", end]) + after)


# --- the plot ---

WEIR, PEER, TARGET, INK, FAINT = "#2a6f97", "#c9ccd1", "#b23a48", "#22252a", "#8a8f98"
PANELS_IN_A_ROW = 5


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws a panel per bench in its own unit: Weir beside its peers, with Weir's ratio above each peer's bar."""
    benches = list(dict.fromkeys(line["bench"] for line in lines))
    with canvas(len(benches), _where(lines), path) as panels:
        for panel, bench in zip(panels, benches, strict=True):
            _panel(panel, [line for line in lines if line["bench"] == bench])


@contextmanager
def canvas(panels: int, caption: str, path: Path) -> Iterator[list[Any]]:
    """Yields panels to draw on, five in a row, and then writes the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns, rows = min(panels, PANELS_IN_A_ROW), -(-panels // PANELS_IN_A_ROW)
    figure, grid = pyplot.subplots(rows, columns, figsize=(2.9 * columns, 4.0 * rows), squeeze=False)
    made = list(grid.flat)
    for unused in made[panels:]:
        unused.set_visible(False)
    for panel in made:
        panel.tick_params(colors=FAINT, labelsize=8, length=0)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    yield made[:panels]
    figure.text(0.01, 0.02 / rows, caption, fontsize=7, color=FAINT)
    figure.tight_layout(rect=(0, 0.05 / rows, 1, 1))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(panel: Any, lines: list[dict[str, Any]]) -> None:
    first = lines[0]
    unit, scale = first["unit"], 1e6 if first["unit"] == "rows/s" else 1.0
    bars = [("Weir", first["weir"] / scale, None)]
    bars += [
        (str(line["peer"]).replace("weir-", "").replace("-", "\n"), line["peer_value"] / scale, line["ratio"])
        for line in lines
        if line["peer_value"] is not None
    ]
    names, values, ratios = zip(*bars, strict=True)
    drawn = panel.bar(range(len(bars)), values, width=0.62, color=[WEIR] + [PEER] * (len(bars) - 1))
    for bar, value, ratio in zip(drawn, values, ratios, strict=True):
        text = (f"{value:,.0f}" if value >= 1000 else f"{value:.3g}") + (
            f"\n(ratio {ratio:.2f})" if ratio is not None else ""
        )
        at = (bar.get_x() + bar.get_width() / 2, value)
        panel.annotate(
            text, at, ha="center", va="bottom", fontsize=8, color=INK, xytext=(0, 2), textcoords="offset points"
        )
    limits = {line["target"]: line["runs"]["limit"] / scale for line in lines if "limit" in line["runs"]}
    for target, limit in limits.items():
        panel.axhline(limit, color=TARGET, linewidth=1, linestyle="--", label=f"target: {target}")
        panel.legend(loc="upper right", fontsize=7, frameon=False, labelcolor=TARGET)
    top = max([*values, *limits.values()]) * 1.35
    panel.set_ylim(0, top or 1)
    if unit == "ms" and max(values) > 20 * min(values):  # else the shorter bars could not be seen
        panel.set_yscale("log")
        panel.minorticks_off()
        panel.set_ylim(min(values) / 3, 6 * top)
    panel.set_xticks(range(len(bars)), names, fontsize=8, color=INK)
    panel.set_xlim(-0.6, max(len(bars) - 0.4, 1.4))
    panel.set_title(first["bench"], fontsize=10, color=INK, loc="left")
    panel.set_ylabel("million rows/s" if unit == "rows/s" else unit, fontsize=8, color=FAINT)
