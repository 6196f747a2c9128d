"""`python -m tests.chaos.run --seed 1 --minutes 5` (`make chaos`) breaks a real job at random, and judges every row.

Runs of half a minute follow each other, each with a job and a seed of its own. The seed decides the faults and the
pauses between them; what they meet depends on the machine. A run is right if the job finished, no row was lost or
doubled, every read saw whole epochs only, and no process is left.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from engine.jobmaster.actions import Outcome
from tests.chaos.faults import Fault, Heal, all_faults
from tests.chaos.job import EVENTS_PER_S
from tests.chaos.reader import Reader
from tests.chaos.world import World

RATE = 2_000
RUN_S = 30
PATIENCE_S = 240.0
NEW_EPOCHS = 2
"""A job has recovered when this many epochs were published after the faults: one may have been under way."""
SEVERAL = 0.3
"""The share of rounds in which the next fault strikes before the job has recovered from the last."""
LEFT_PATIENCE_S = 30.0

Say = Callable[[str], None]


class Strike(msgspec.Struct, frozen=True):
    """One round: its faults, and the longest time without a new epoch until the job had recovered from them."""

    seed: int
    kinds: list[str]
    pause_s: float


@dataclass
class Run:
    seed: int
    strikes: list[Strike] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    reads: int = 0
    epochs: int = 0
    folds: int = 0
    took_s: float = 0.0


class Pauses:
    """Watches the newest epoch, and remembers the longest time in which there was no new one."""

    def __init__(self, epoch: int, now_s: float) -> None:
        self._epoch = epoch
        self._since_s = now_s
        self.longest_s = 0.0

    def look(self, epoch: int, now_s: float) -> None:
        self.longest_s = max(self.longest_s, now_s - self._since_s)
        if epoch > self._epoch:
            self._epoch, self._since_s = epoch, now_s


class Chaos:
    """One run: a job from its start to its end, and the faults on the way."""

    def __init__(self, seed: int, folder: Path, faults: Sequence[Fault], rows: int, say: Say) -> None:
        self._run = Run(seed)
        self._chance = random.Random(seed)
        self._faults = faults
        self._rows = rows
        self._say = say
        self._world = World(folder, rows, RATE)
        self._heals: list[tuple[float, Heal]] = []
        self._pauses = Pauses(0, time.monotonic())

    def go(self) -> Run:
        started = time.monotonic()
        with self._world as world:
            reader = Reader(world.table("numbered"), world.table("sums"))
            reader.start()
            try:
                self._await("the first epochs", lambda: world.epoch() >= NEW_EPOCHS)
                while not self._finished():
                    self._round()
                self._heal(everything=True)
                left = world.wait_until_empty(LEFT_PATIENCE_S)
                self._run.wrong += [f"a process outlived the job: {process}" for process in left]
                self._run.wrong += reader.verdict(self._rows)
            except AssertionError as error:
                self._run.wrong.append(str(error))
                self._say(world.log()[-4000:])
            finally:
                self._heal(everything=True)
                reader.stop()
            self._run.wrong += reader.wrong[:5]
            self._run.reads, self._run.epochs, self._run.folds = reader.reads, world.epoch(), reader.folds
        self._run.took_s = time.monotonic() - started
        return self._run

    def _round(self) -> None:
        """Strikes once or several times, and waits until the job has recovered or finished."""
        kinds: list[str] = []
        while True:
            self._wait(self._chance.uniform(0.0, 2.0))
            if self._finished():
                break
            fault = self._chance.choice(self._faults)
            if not any(fault.kind.split(":")[0] == kind.split(":")[0] == "store" for kind in kinds):
                if not kinds:
                    self._pauses = Pauses(self._world.epoch(), time.monotonic())
                self._strike(fault)
                kinds.append(fault.kind)
            if self._chance.random() >= SEVERAL:
                break
        if not kinds:
            return
        self._await("the end of the faults", lambda: not self._heals or self._finished())
        healed = self._world.epoch()
        self._await("recovery", lambda: self._finished() or self._world.epoch() >= healed + NEW_EPOCHS)
        if not self._finished():
            self._run.strikes.append(Strike(self._run.seed, kinds, round(self._pauses.longest_s, 1)))
        self._say(f"      {' + '.join(kinds)}: {self._pauses.longest_s:.1f} s")

    def _strike(self, fault: Fault) -> None:
        heal = fault.strike(self._world, self._chance)
        if heal is not None:
            self._heals.append((time.monotonic() + fault.lasts_s, heal))

    def _heal(self, everything: bool = False) -> None:
        for due in [due for due in self._heals if everything or due[0] <= time.monotonic()]:
            due[1]()
            self._heals.remove(due)

    def _finished(self) -> bool:
        end = self._world.ended()
        assert end is None or end.outcome is not Outcome.FAILED, f"the job failed: {end}"
        return end is not None and end.outcome is Outcome.FINISHED

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._look_after()

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, f"{what}: not in {PATIENCE_S:.0f} s"
            self._look_after()

    def _look_after(self) -> None:
        self._heal()
        self._world.keep_started()
        self._pauses.look(self._world.epoch(), time.monotonic())
        time.sleep(0.1)


def table_of(strikes: Sequence[Strike]) -> str:
    """Returns the longest time without a new epoch by kind of fault, as a table of Markdown."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for strike in strikes:
        by_kind[strike.kinds[0] if len(strike.kinds) == 1 else "several before recovery"].append(strike.pause_s)
    lines = ["| fault | strikes | time without an epoch: median | longest |", "|---|---|---|---|"]
    for kind, times in sorted(by_kind.items()):
        lines.append(f"| {kind} | {len(times)} | {statistics.median(times):.1f} s | {max(times):.1f} s |")
    return "\n".join(lines)


def run_one(seed: int, say: Say, faults: Sequence[Fault] | None = None, seconds: int = RUN_S) -> Run:
    rows = RATE * seconds // EVENTS_PER_S * EVENTS_PER_S  # whole windows
    with tempfile.TemporaryDirectory(prefix="weir-chaos-") as folder:
        return Chaos(seed, Path(folder), faults or all_faults(), rows, say).go()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first run; the next runs count up")
    parser.add_argument("--minutes", type=float, default=5.0, help="no run begins after this time")
    parser.add_argument("--runs", type=int, default=1_000_000, help="at most this many runs")
    parser.add_argument("--only", default="", help="only faults whose name contains this text")
    parser.add_argument("--out", type=Path, help="append each strike to this file, as a line of JSON")
    asked = parser.parse_args()
    faults = [fault for fault in all_faults() if asked.only in fault.kind]
    if not faults:
        sys.exit(f"no fault contains {asked.only!r}; there are: {', '.join(fault.kind for fault in all_faults())}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the job is ended and the store unmounted
    strikes: list[Strike] = []
    bad = []
    until = time.monotonic() + 60 * asked.minutes
    seed = asked.seed
    while seed < asked.seed + asked.runs and (seed == asked.seed or time.monotonic() < until):
        print(f"run {seed}", flush=True)
        run = run_one(seed, lambda text: print(text, flush=True), faults)
        strikes += run.strikes
        said = "; ".join(run.wrong) or "lost 0, doubled 0, whole epochs only, no process left"
        print(
            f"run {seed}: {said} ({run.reads} reads, {run.epochs} epochs, {run.folds} folds, {run.took_s:.0f} s)",
            flush=True,
        )
        if run.wrong:
            bad.append(seed)
        if asked.out:
            with asked.out.open("ab") as file:
                file.writelines(msgspec.json.encode(strike) + b"\n" for strike in run.strikes)
        seed += 1
    print("\n" + table_of(strikes))
    result = f"WRONG: seeds {bad}" if bad else "all right"
    print(f"\n{seed - asked.seed} runs, {len(strikes)} recoveries, {result}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
