"""Decides what is wrong with a job that somebody should know of, and which messages are due. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from engine.observe.timeline import RestartRecord
from orchestration.health import Health, State
from orchestration.spec import AlertLimits

FAILED, SILENT, RESTARTS, RECOVERY, CHECKPOINT, WATERMARK, STORE_FULL = (
    "the job failed",
    "no sign of life",
    "restart loop",
    "slow recovery",
    "checkpoint overdue",
    "watermark stands still",
    "store full",
)
CHECK = "red check "
"""The kind of an incident is one of these texts. That of a check goes on with the asset and the check's name."""

OVERDUE_INTERVALS, OVERDUE_MORE_MS = 3, 30_000
"""Without a limit of its own, a checkpoint is overdue after this many intervals and this time."""
TEXT_LENGTH = 500


@dataclass(frozen=True)
class Facts:
    """What is known of a job at one look. `checks` has the text of each red check, `unsure` those that run just now."""

    health: Health
    heartbeat_ms: int | None
    restarts: Sequence[RestartRecord]
    """The restarts of the job that the history holds, newest first."""
    started_ms: int
    """When the job was started; restarts before that belong to an earlier start."""
    completed_ms: int
    """When the last checkpoint was completed; 0: none was."""
    interval_ms: int | None
    still_ms: int | None = None
    """How long the watermark has not moved although records were read; None: it moves."""
    free_bytes: int | None = None
    """What is left on the disk of the store; None: nobody can tell."""
    checks: Mapping[str, str] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Message:
    """A message to send. `opens` and `closes` name the incident that it begins or ends; one that did both has both."""

    kind: str
    text: str
    opens: bool = False
    closes: bool = False


@dataclass(frozen=True)
class Outage:
    """A time in which no attempt ran. `ended_ms` is None while it lasts."""

    since_ms: int
    ended_ms: int | None
    cause: str

    def lasted_ms(self, now_ms: int) -> int:
        return (self.ended_ms if self.ended_ms is not None else now_ms) - self.since_ms


def due(
    facts: Facts, limits: AlertLimits, known: Mapping[str, int], looked_ms: int, running_ms: int | None, now_ms: int
) -> list[Message]:
    """Returns the messages that are due: one when an incident begins, one when it is over.

    `known` has the incidents that were sent and are not over, and since when; `looked_ms` is the time of the last look,
    `running_ms` the time since which every look has found the job running.
    """
    there = dict(present(facts, limits, running_ms, now_ms))
    kept = {kind for kind in known if kind not in there and _undecided(kind, facts)}
    messages = [
        Message(kind, f"over after {in_words(now_ms - known[kind])}: {kind}", closes=True)
        for kind in known
        if kind not in there and kind not in kept
    ]
    messages += [
        Message(kind, f"{kind}: {_short(text)}", opens=True) for kind, text in there.items() if kind not in known
    ]
    if RECOVERY not in known and RECOVERY not in there:
        messages += [
            Message(RECOVERY, f"{RECOVERY}, over by now: {_short(_slow(outage, limits, now_ms))}", True, True)
            for outage in outages(facts)
            if outage.ended_ms is not None and outage.ended_ms > looked_ms and _is_slow(outage, limits, now_ms)
        ]
    return messages


def _undecided(kind: str, facts: Facts) -> bool:
    """Says whether this look can't tell if an incident is over."""
    if kind.startswith(CHECK):
        return kind.removeprefix(CHECK) in facts.unsure
    passing = facts.health.state in (State.STARTING, State.RECOVERING, State.SILENT, State.GONE)
    return passing and kind in (CHECKPOINT, RECOVERY, RESTARTS, WATERMARK)


def present(facts: Facts, limits: AlertLimits, running_ms: int | None, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yields the incidents that there are now, each with what a reader should know."""
    health = facts.health
    free, least = facts.free_bytes, int(limits.store_free_mb * 1_000_000)
    if health.state not in (State.STOPPED, State.FINISHED) and free is not None and free < least:
        yield STORE_FULL, f"{free / 1e6:.0f} MB are left on its disk, fewer than {least / 1e6:.0f}"
    if health.state is State.FAILED:
        yield FAILED, health.detail
    if health.state in (State.SILENT, State.GONE):
        yield SILENT, health.detail
    if health.state in (State.RUNNING, State.RECOVERING, State.SILENT):
        yield from _restarts(facts, limits, now_ms)
        for outage in outages(facts):
            if outage.ended_ms is None and _is_slow(outage, limits, now_ms):
                yield RECOVERY, _slow(outage, limits, now_ms)
    if health.state is State.RUNNING and running_ms is not None:
        yield from _checkpoint(facts, limits, running_ms, now_ms)
    if health.state is State.RUNNING and facts.still_ms is not None and facts.still_ms > 1000 * limits.watermark_s:
        yield WATERMARK, f"it has not moved for {in_words(facts.still_ms)}, while records were read: no window closes"
    for name, text in facts.checks.items():
        yield CHECK + name, text


def _restarts(facts: Facts, limits: AlertLimits, now_ms: int) -> Iterator[tuple[str, str]]:
    lately = [restart for restart in _of_this_start(facts) if now_ms - restart.at_ms <= 1000 * limits.within_s]
    if len(lately) >= limits.restarts:
        within = in_words(round(1000 * limits.within_s))
        yield RESTARTS, f"{len(lately)} restarts within {within}; the last one: {_cause(lately[0])}"


def _checkpoint(facts: Facts, limits: AlertLimits, running_ms: int, now_ms: int) -> Iterator[tuple[str, str]]:
    if facts.interval_ms is None:
        return
    usual_ms = OVERDUE_INTERVALS * facts.interval_ms + OVERDUE_MORE_MS
    limit_ms = usual_ms if limits.checkpoint_age_s is None else 1000 * limits.checkpoint_age_s
    if now_ms - max(facts.completed_ms, running_ms) > limit_ms:
        age = f"for {in_words(now_ms - facts.completed_ms)}" if facts.completed_ms else "yet"
        yield CHECKPOINT, f"no checkpoint was completed {age}; one is due every {in_words(facts.interval_ms)}"


def outages(facts: Facts) -> list[Outage]:
    """Returns the outages of this start, oldest first. Restarts that followed each other without a run are one."""
    ends = groupby(reversed(_of_this_start(facts)), key=_ended_ms)
    found = [
        Outage(group[0].at_ms, ended_ms, _cause(group[-1])) for ended_ms, members in ends for group in [list(members)]
    ]
    if facts.health.state is State.RECOVERING and not (found and found[-1].ended_ms is None):
        found += [Outage(facts.heartbeat_ms, None, facts.health.detail)] if facts.heartbeat_ms is not None else []
    return found


def _of_this_start(facts: Facts) -> list[RestartRecord]:
    return [restart for restart in facts.restarts if restart.at_ms >= facts.started_ms]


def _ended_ms(restart: RestartRecord) -> int | None:
    return restart.at_ms + restart.recovery_ms if restart.recovery_ms is not None else None


def _cause(restart: RestartRecord) -> str:
    return f"{restart.text}: {restart.detail}" if restart.detail else restart.text


def _is_slow(outage: Outage, limits: AlertLimits, now_ms: int) -> bool:
    return outage.lasted_ms(now_ms) > 1000 * limits.recovery_s


def _slow(outage: Outage, limits: AlertLimits, now_ms: int) -> str:
    target = in_words(round(1000 * limits.recovery_s))
    took = "took" if outage.ended_ms is not None else "has taken"
    return f"it {took} {in_words(outage.lasted_ms(now_ms))}, above the target of {target}; cause: {outage.cause}"


def in_words(ms: int) -> str:
    """Returns a duration for people: one number, with the unit in which it is neither tiny nor huge."""
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * size_ms:
            return f"{ms / size_ms:.0f} {unit}"
    return f"{ms / 1000:.0f} s" if ms >= 10_000 else f"{ms / 1000:g} s"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_LENGTH else f"{line[:TEXT_LENGTH]} …"
