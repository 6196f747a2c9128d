"""`python -m benchmarks.scale`: measures what 10, 100 and 1,000 slots cost the JobMaster and each slot (docs/scale.md).

The control plane is simulated with the real JobMaster (`controlplane.py`). The costs of streams and gates are measured
for a few and multiplied.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import pyarrow as pa
from rich.console import Console

from benchmarks import report, streams
from benchmarks.controlplane import SOURCE, WINDOWS, ControlPlane, Meter
from benchmarks.report import Result, Say
from engine.core.ports import Frame
from engine.protocol.alignment.aligned import AlignedBarriers
from engine.protocol.credits import GateCredit
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.signals import Watermark
from engine.runtime.exchange.gate import InputGate

SIZES = (10, 100, 1_000)
CHECKPOINTS = 20
REPEATS = 7
LIMIT_CORES = 0.5
PAGE = report.ROOT / "docs" / "scale.md"
PLOT = report.RESULTS / "scale.png"

_COMPLETING = ("publish", "commit", "manifest (I/O)", "publish (I/O)", "commit (I/O)", "sweep (I/O)")


@dataclass(frozen=True)
class Figures:
    """The figures for one number of slots.

    `deciding_cores` is what the JobMaster needs while the job runs: decisions, encoding, decoding, I/O. `batch_us` and
    `watermark_us` are a gate's time for one element when all channels send in turn, `lone_us` for a batch that comes
    alone.
    """

    slots: int
    meter: Meter
    costs: list[streams.StreamCosts]
    messages_per_s: float
    deciding_cores: float
    checkpoint_ms: float
    recovery_ms: float
    manifest_bytes: int
    compact_bytes: int
    batch_us: float
    watermark_us: float
    lone_us: float

    @property
    def peers(self) -> int:
        return self.slots - 1

    @property
    def completing_ms(self) -> float:
        """The JobMaster's CPU time for one checkpoint, from the last acknowledgement to the next trigger."""
        return 1000 * sum(self.meter.cpu_s[kind] for kind in _COMPLETING) / self.meter.calls["commit"]

    @property
    def deploy_bytes(self) -> float:
        return self.meter.wire_bytes["Deploy"] / self.meter.sent["Deploy"]

    @property
    def streaming_cores(self) -> list[float]:
        """The cores that control streams need at both ends, for each measured unit cost, lowest first."""
        return sorted(self.messages_per_s * cost.message_us / 1e6 for cost in self.costs)

    @property
    def cores(self) -> float:
        """The JobMaster's cores at the highest unit cost: costs vary widely, and the JobMaster must always keep up."""
        return self.deciding_cores + self.streaming_cores[-1]

    @property
    def slot_threads(self) -> float:
        return median(cost.threads for cost in self.costs) * self.peers

    @property
    def opening_ms(self) -> list[float]:
        return sorted(cost.open_ms * self.peers for cost in self.costs)

    @property
    def credit_bytes(self) -> int:
        return GateCredit(self.slots).capacity


def scale(say: Say) -> list[Result]:
    costs = streams.measured(REPEATS)
    figures = []
    for slots in SIZES:
        figures.append(_figures(slots, costs))
        say(f"scale: {slots:,} slots: the JobMaster takes {figures[-1].cores:.3f} cores")
    _into_page(figures)
    _plot(figures)
    most = figures[-1]
    low, _, high = _spread(most.streaming_cores)
    note = (
        f"the JobMaster's process with {most.slots:,} simulated slots and a checkpoint every second: "
        f"{most.deciding_cores:.2f} cores by the real state machine in virtual time, and {low:.2f} to {high:.2f} (the "
        f"highest counts) for {most.messages_per_s:,.0f} messages a second on control streams; recovery "
        f"{most.recovery_ms / 1000:.2f} s with the restart delay of 1 s; what each slot would need is in docs/scale.md"
    )
    runs = {f"{f.slots} slots": [f.deciding_cores, *f.streaming_cores] for f in figures} | {"limit": LIMIT_CORES}
    target = f"≤ {LIMIT_CORES} cores"
    return [Result("scale", None, most.cores, None, "cores", None, note, target, most.cores <= LIMIT_CORES, runs=runs)]


def _figures(slots: int, costs: list[streams.StreamCosts]) -> Figures:
    plane = ControlPlane(slots)
    meter = plane.meter
    plane.run_until(lambda: plane.master.stats.checkpoints_completed == 1)
    cpu_s, began_ms, messages = sum(meter.cpu_s.values()), plane.now_ms, meter.messages
    plane.run_until(lambda: plane.master.stats.checkpoints_completed == CHECKPOINTS)
    seconds = (plane.now_ms - began_ms) / 1000
    messages_per_s = (meter.messages - messages) / seconds
    deciding_cores = (sum(meter.cpu_s.values()) - cpu_s) / seconds
    checkpoint_ms = plane.when_ms("completed") - plane.when_ms("triggered")
    plane.run(CHECKPOINTS)
    newest = plane.master.newest
    assert newest is not None
    compact = [path for path in plane.store.list(plane.paths.table(WINDOWS)) if path.endswith(".compact")]
    return Figures(
        slots,
        meter,
        costs,
        messages_per_s,
        deciding_cores,
        checkpoint_ms,
        plane.when_ms("running") - plane.when_ms("lost"),
        len(plane.store.read(newest.path)),
        max(len(plane.store.read(path)) for path in compact),
        _gate_us(slots, slots, batches=True),
        _gate_us(slots, slots, batches=False),
        _gate_us(slots, 1, batches=True),
    )


class _Grants:
    """Takes a gate's grants of credit, and ignores them."""

    def grant(self, attempt: AttemptId, channel: ChannelId, granted_total: int) -> None: ...


def _gate_us(channels: int, senders: int, *, batches: bool, elements: int = 3_000) -> float:
    """Returns a gate's CPU time per element: in each round every sender sends one, and the gate takes all of them."""
    ids = [ChannelId(f"{SOURCE}->{WINDOWS}", sender, 0) for sender in range(channels)]
    gate = InputGate(AttemptId(1, 1), ids, AlignedBarriers(channels), _Grants())  # type: ignore[arg-type]
    gate.start()
    batch = pa.record_batch({"key": pa.array(range(64))})
    spent_s, rounds = 0.0, elements // senders
    for number in range(1, rounds + 1):
        for channel in ids[:senders]:
            frame = Frame(number, batch, batch.nbytes, 0) if batches else Frame(number, Watermark(number), 0, 0)
            gate.receive(channel, frame)
        began = time.thread_time()
        while gate.poll(65_536, 0.0) is not None:
            pass
        spent_s += time.thread_time() - began
    return 1e6 * spent_s / (rounds * senders)


# --- for people ---


def _rows(figures: list[Figures]) -> list[tuple[str, list[str]]]:
    def row(title: str, value: Any) -> tuple[str, list[str]]:
        return title, [value(f) for f in figures]

    def each(kind: str) -> Any:
        return lambda f: f"{f.meter.each_us(kind):.1f} µs"

    return [
        row("**The JobMaster**: control messages a second", lambda f: f"{f.messages_per_s:,.0f}"),
        row("CPU for decisions, encoding, I/O", lambda f: f"{f.deciding_cores:.3f} cores"),
        row(
            f"CPU for control streams, median of {REPEATS} (lowest–highest)",
            lambda f: "{1:.3f} ({0:.3f}–{2:.3f}) cores".format(*_spread(f.streaming_cores)),
        ),
        row("threads for control streams", lambda f: f"{2 * f.slots:,}"),
        row("deciding: a registration", each("Register")),
        row("a heartbeat", each("Heartbeat")),
        row("an acknowledgement", each("Acknowledge")),
        row("a tick", each("tick")),
        row("a slot that says it is deployed", each("Deployed")),
        row("a subtask that has finished", each("SubtaskFinished")),
        row("encoding a Deploy", each("encode Deploy")),
        row("a Deploy on the wire", lambda f: _size(f.deploy_bytes)),
        row("all Deploys of one attempt", lambda f: _size(f.deploy_bytes * f.slots)),
        row("completing a checkpoint, CPU", lambda f: f"{f.completing_ms:.1f} ms"),
        row("checkpoint, trigger → committed", lambda f: f"{f.checkpoint_ms:.0f} ms"),
        row("manifest", lambda f: _size(f.manifest_bytes)),
        row("read at a restore, by all slots", lambda f: _size(f.manifest_bytes * f.slots)),
        row(f"the table's compacted record after {CHECKPOINTS} epochs", lambda f: _size(f.compact_bytes)),
        row("recovery, slot lost → running", lambda f: f"{f.recovery_ms / 1000:.2f} s"),
        row("**A slot**: channels of the keyed exchange, whole job", lambda f: f"{f.slots**2:,}"),
        row("Flight streams, in and out", lambda f: f"{2 * f.peers:,}"),
        row("threads for them", lambda f: f"{f.slot_threads:,.0f}"),
        row("file descriptors for them", lambda f: f"{2 * f.peers:,}"),
        row("memory for them, empty", lambda f: _size(1000 * median(c.memory_kb for c in f.costs) * f.peers)),
        row("credit that its gate grants at most", lambda f: _size(f.credit_bytes)),
        row(
            "opening its streams, task thread",
            lambda f: "{1:,.0f} ({0:,.0f}–{2:,.0f}) ms".format(*_spread(f.opening_ms)),
        ),
        row("its gate takes a batch, all send", lambda f: f"{f.batch_us:.1f} µs"),
        row("its gate takes a watermark, all send", lambda f: f"{f.watermark_us:.1f} µs"),
        row("its gate takes a batch that comes alone", lambda f: f"{f.lone_us:.1f} µs"),
    ]


def _spread(ordered: list[float]) -> tuple[float, float, float]:
    return ordered[0], median(ordered), ordered[-1]


def _size(value: float) -> str:
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:.0f} B"


def _into_page(figures: list[Figures]) -> None:
    head = ["", *(f"{f.slots:,} slots" for f in figures)]
    lines = [head, ["---", *("---:" for _ in figures)], *([title, *cells] for title, cells in _rows(figures))]
    report.between_markers(
        PAGE, [*(f"| {' | '.join(line)} |" for line in lines), "", report.where(report.stamp()) + "."]
    )


def _plot(figures: list[Figures]) -> None:
    """Draws each need as a share of what a process or machine usually has: the first to cross 1 breaks first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shares = {
        "credit of a slot's gate / 4 GB": [f.credit_bytes / 4e9 for f in figures],
        "threads of a slot / 1,000": [f.slot_threads / 1000 for f in figures],
        "descriptors of a slot / 1,024": [2 * f.peers / 1024 for f in figures],
        "a gate takes a lone batch / 1 ms": [f.lone_us / 1000 for f in figures],
        "the JobMaster's CPU / 1 core": [f.cores for f in figures],
        "recovery without its delay / 1 s": [(f.recovery_ms - 1000) / 1000 for f in figures],
    }
    figure, panel = pyplot.subplots(figsize=(7.5, 4.2))
    for name, values in shares.items():
        panel.plot([f.slots for f in figures], values, marker="o", markersize=4, linewidth=1.4, label=name)
    panel.axhline(1.0, color="#b23a48", linewidth=1, linestyle="--")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(SIZES, [f"{slots:,}" for slots in SIZES])
    panel.set_xlabel("slots", fontsize=8)
    panel.set_ylabel("share of the limit", fontsize=8)
    panel.legend(fontsize=7, frameon=False)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    figure.tight_layout()
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PLOT, dpi=130)
    pyplot.close(figure)


def main() -> None:
    console = Console()
    lines = report.write(scale(lambda line: console.print(line, highlight=False)))
    report.show([line for line in lines if line["bench"] == "scale"], console)
    console.print(f"Written to {PAGE} and {PLOT}.")


if __name__ == "__main__":
    main()
