"""`python -m tests.chaos.savepoints --seed 1 --runs 4` strikes while savepoints are written, and judges every row.

Each run has a job on Spark, with 10 MB of state, in a directory or (`--bucket`) in a real MinIO. The seed draws
commands that make a savepoint and a call of it before which a slot or the JobMaster stands (`gate.py`); then one kind
of strike follows another. A strike counts as met if somebody stood at the call, and there were files and no
`savepoint.json`. A run is right if

- the job goes on after each strike, or was ended as was asked, and no command hangs or ends with a traceback;
- a command that said that its savepoint was made has made it;
- the table of the job is exact: lost 0, doubled 0, all windows those of the truth;
- `weir submit --from` begins from each savepoint that exists, and the tables are exact from its cut on;
- `weir gc` leaves only complete savepoints and seals, and finds nothing more; no process is left.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from engine.core.errors import WeirError
from engine.jobmaster.actions import Outcome
from tests.chaos.gate import wait_standing
from tests.chaos.savepoint_judge import wrong_in
from tests.chaos.savepoint_strikes import (
    BEGINNING,
    CLAIMING,
    DRAIN,
    IN_BUCKET,
    SAVEPOINT,
    STOP,
    UPGRADE,
    Asked,
    Moment,
    Strike,
    Struck,
    beginning_strikes,
    strikes_for,
)
from tests.chaos.savepoint_world import AT_ONCE, Said, SavepointWorld
from tests.chaos.world import JOB, reap

ROWS = 150_000
STANDING_S = 60.0
PATIENCE_S = 240.0
LEFT_PATIENCE_S = 30.0
NEW_EPOCHS = 2
BEGINNINGS_STRUCK = 0.4
"""The share of savepoints of which the first `weir submit --from` is struck."""

Say = Callable[[str], None]


class Blow(msgspec.Struct):
    """One strike: what was asked for, where somebody stood, what was done, and what came of it."""

    seed: int
    store: str
    asked: str
    moment: str
    strike: str
    met: bool = False
    evidence: str = ""
    said: str = ""
    made: bool = False
    wrong: list[str] = []


class Vandal:
    def __init__(self, seed: int, folder: Path, strikes: int, bucket: bool, only: str, say: Say) -> None:
        self._seed = seed
        self._chance = random.Random(seed)
        self._count = strikes
        self._only = only
        self._say = say
        self._world = SavepointWorld(folder, ROWS, bucket)
        self.blows: list[Blow] = []
        self.wrong: list[str] = []

    def go(self) -> None:
        with self._world as world:
            try:
                said = world.submit()
                assert said.code == 0, said.text
                self._await("the first epochs", lambda: world.epoch() >= NEW_EPOCHS)
                drained = False
                for number in range(self._count):
                    if drained := self._blow(number):
                        break
                self._judge(drained)
            except (AssertionError, WeirError, OSError) as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
            if self.wrong or any(blow.wrong for blow in self.blows):
                self._say(world.log()[-6000:])

    # ------------------------------------------------------------------ strike

    def _draw(self, number: int) -> tuple[Asked, Moment, Strike]:
        last = number == self._count - 1
        asked = (
            DRAIN if last and self._seed % 3 == 0 else self._chance.choices((SAVEPOINT, STOP, UPGRADE), (5, 2, 1))[0]
        )
        if self._only:
            ways = [one for one in self._ways(last) if self._only in f"{one[0].kind} · {one[1].name} · {one[2].kind}"]
            assert ways, f"no strike is called {self._only!r}"
            return self._chance.choice(ways)
        moments = [one for one in asked.moments if not self._world.bucket or one in IN_BUCKET]
        found = strikes_for(asked, self._world.bucket)
        strike = found[(self._seed * self._count + number) % len(found)]  # so that seeds in a row strike in all ways
        return asked, self._chance.choice(moments), strike

    def _ways(self, last: bool) -> list[tuple[Asked, Moment, Strike]]:
        """Returns all strikes at all calls of all commands. A drain comes last: nothing can follow it."""
        bucket = self._world.bucket
        return [
            (asked, moment, strike)
            for asked in (SAVEPOINT, STOP, UPGRADE, *([DRAIN] if last else []))
            for moment in asked.moments
            for strike in strikes_for(asked, bucket)
            if not bucket or moment in IN_BUCKET
        ]

    def _blow(self, number: int) -> bool:
        """Strikes once and waits until the job has recovered. Returns True if it is over for good."""
        world = self._world
        asked, moment, strike = self._draw(number)
        name = "*" if asked is UPGRADE else f"sp-{number:02d}"
        blow = Blow(self._seed, world.kind, asked.kind, moment.name, strike.kind)
        self.blows.append(blow)
        before, folders = world.made(), {file.split("/")[0] for file in world.savepoint_files()}
        world.gate.close(moment.call(name))
        begun = world.begin(*(word.replace("{name}", name) for word in asked.words))
        standing = wait_standing(world.gate, STANDING_S)
        if standing is None:
            blow.evidence = "nobody came to the call"
            world.gate.lift()
            struck = Struck()
        else:
            files = [file for file in world.savepoint_files() if file.split("/")[0] not in folders]
            blow.met = bool(files) and not any(file.endswith("savepoint.json") for file in files)
            blow.evidence = f"pid {standing} stood; {len(files)} files of a savepoint that does not exist yet"
            struck = strike.go(world, self._chance, standing, name)
            world.gate.lift()
            struck.heal()
        blow.wrong += struck.wrong
        said = self._end_of(asked, begun)
        blow.said = f"{said.code}: {said.short}"
        if said.code == 999 or "Traceback" in said.text:
            blow.wrong.append(f"weir {asked.kind} hung or ended with a traceback: {said.text[-800:]}")
        over = self._go_on(asked, said, blow)
        blow.made = bool(set(world.made()) - set(before))
        if said.code == 0 and not blow.made:
            blow.wrong.append("the command said that the savepoint was made, and it does not exist")
        self._tell(blow)
        return over

    def _tell(self, blow: Blow) -> None:
        self._say(
            f"  {blow.asked} · {blow.moment} · {blow.strike}: met {blow.met}, made {blow.made} ({blow.said[:230]})"
        )
        for wrong in blow.wrong:
            self._say(f"    WRONG {wrong}")

    def _end_of(self, asked: Asked, begun: subprocess.Popen[str]) -> Said:
        """Waits for the command. A job whose supervisor was killed is submitted again meanwhile."""
        until = time.monotonic() + PATIENCE_S
        while begun.poll() is None and time.monotonic() < until:
            if asked is not UPGRADE:  # that starts the job by itself
                self._world.keep_started(self._say)
            time.sleep(0.2)
        return self._world.said(begun, 0.1)

    def _go_on(self, asked: Asked, said: Said, blow: Blow) -> bool:
        """Waits until the job has new epochs; it is submitted again if it has ended. True: it was drained."""
        world = self._world
        if asked is UPGRADE and said.code != 0:
            carried = world.weir("upgrade", JOB)
            blow.said += f" | again, {carried.code}: {carried.short}"
        epoch = world.epoch()
        until = time.monotonic() + PATIENCE_S
        while world.epoch() < epoch + NEW_EPOCHS:
            assert time.monotonic() < until, f"no new epochs after {blow}"
            ended = world.ended()
            if ended is not None:
                assert ended.outcome is not Outcome.FAILED, f"the job failed after {blow}: {ended}"
                assert ended.outcome is not Outcome.FINISHED, "the job has read all its records: strike less often"
                again = world.submit()
                if "it was drained" in again.text:
                    return True
                self._say(f"      it was {ended.outcome}, submitted again: {again.short[-160:]}")
            world.keep_started(self._say)
            time.sleep(0.3)
        return False

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until, f"{what}: not in {PATIENCE_S:.0f} s"
            self._world.keep_started(self._say)
            time.sleep(0.2)

    # ------------------------------------------------------------------ judge

    def _judge(self, drained: bool) -> None:
        world = self._world
        if not drained:
            said = world.weir("stop", JOB)
            assert said.code == 0, f"weir stop: {said.text}"
            self._check_table(JOB, whole=False)
            said = world.submit(rate=AT_ONCE)
            assert said.code == 0, said.text
            self._finish(JOB)
        self._check_table(JOB, whole=not drained, drained=drained)
        for name in world.made():
            self._restore(name)
        self._check_rest()
        self.wrong += [f"a process outlived the job: {left}" for left in world.wait_until_empty(LEFT_PATIENCE_S)]

    def _finish(self, job: str) -> None:
        ended = self._world.client(job).wait_until_ended(PATIENCE_S)
        assert ended is not None and ended.outcome is Outcome.FINISHED, f"{job}: {ended}"
        reap()

    def _check_table(self, job: str, *, whole: bool, begun: bool = False, drained: bool = False) -> None:
        tables = [self._world.table(name, job) for name in ("numbered", "sums")]
        wrong = wrong_in(tables[0], tables[1], ROWS, begun=begun, whole=whole, drained=drained)
        rows = tables[0].num_rows if tables[0] is not None else 0
        self._say(f"  table of {job}, {rows} rows: {'; '.join(wrong) or 'lost 0, doubled 0'}")
        self.wrong += [f"{job}: {one}" for one in wrong]

    def _restore(self, name: str) -> None:
        """Begins a job from this savepoint. Some are claimed; one that is not stays as it is."""
        world, claim = self._world, self._chance.random() < 0.5
        before, job = world.savepoint_files(name), f"from-{name}"
        words = world.submitting(job, "--from", f"{JOB}/{name}", *(["--claim"] if claim else []), rate=AT_ONCE)
        begun = self._chance.random() < BEGINNINGS_STRUCK and self._strike_beginning(words, name, job, claim)
        if not begun and name not in world.made():
            self._say(f"  {name} was deleted before a job had begun from it")
            return
        if not begun:
            said = world.weir(*words)
            if "was taken with --drain" in said.text:
                self._say(f"  {name} was drained, and is refused")
                return
            assert said.code == 0, f"{name} can't be restored: {said.text[-600:]}"
        self._finish(job)
        self._check_table(job, whole=True, begun=True)
        if not claim and name in world.made() and world.savepoint_files(name) != before:
            self.wrong.append(f"{name} has changed though it was not claimed")

    def _strike_beginning(self, words: tuple[str, ...], name: str, job: str, claim: bool) -> bool:
        """Strikes while `weir submit --from` stands. Returns True if a job has begun."""
        world = self._world
        strike = self._chance.choice(beginning_strikes(words))
        moment = self._chance.choice(CLAIMING if claim else BEGINNING)
        asked = "submit --from --claim" if claim else "submit --from"
        blow = Blow(self._seed, world.kind, asked, moment.name, strike.kind, said="", made=True)
        world.gate.close(moment.call(job))
        begun = world.begin(*words)
        standing = wait_standing(world.gate, STANDING_S)
        struck = strike.go(world, self._chance, standing, name) if standing is not None else Struck()
        world.gate.lift()
        said = world.said(begun)
        if standing is None and "was taken with --drain" in said.text:
            return False
        self.blows.append(blow)
        blow.met, blow.evidence, blow.said = standing is not None, f"pid {standing} stood", f"{said.code}: {said.short}"
        blow.wrong += struck.wrong
        if said.code == 999 or "Traceback" in said.text:
            blow.wrong.append(f"weir {asked} hung or ended with a traceback: {said.text[-800:]}")
        self._tell(blow)
        return struck.begun or said.code == 0

    def _check_rest(self) -> None:
        """After `weir gc` there are complete savepoints and the seals of those that were given up, and no more."""
        world = self._world
        first = world.gc()
        again = world.gc("--dry-run")
        self._say(f"  weir gc: {len(first['collected'])} deleted, {len(first['completed'])} completed")
        self.wrong += [f"weir gc still finds {again['collected']}, {again['completed']}"] * bool(
            again["collected"] or again["completed"]
        )
        self.wrong += [f"weir gc: {problem}" for problem in (*first["problems"], *again["problems"])]
        complete = set(world.made())
        for file in world.savepoint_files():
            folder, _, inside = file.partition("/")
            hidden = inside.rpartition("/")[2].startswith(".")  # deleted later: docs/retention.md
            if folder not in complete and not inside.endswith(".seal") and not hidden:
                self.wrong.append(f"{file} is left of a savepoint that was not made")


def table_of(blows: Sequence[Blow]) -> str:
    """Returns how often each kind of strike met a savepoint, and what came of it, as a table of Markdown."""
    by_kind: dict[tuple[str, str], list[Blow]] = defaultdict(list)
    for blow in blows:
        by_kind[blow.strike, blow.store].append(blow)
    lines = ["| strike | store | strikes | met | savepoint made | result |", "|---|---|---|---|---|---|"]
    for (kind, store), mine in sorted(by_kind.items()):
        met, made = sum(blow.met for blow in mine), sum(blow.made for blow in mine)
        result = "**broke**" if any(blow.wrong for blow in mine) else "right"
        lines.append(f"| {kind} | {store} | {len(mine)} | {met} | {made} | {result} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first run; the next runs count up")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--strikes", type=int, default=8, help="so many strikes a run")
    parser.add_argument("--bucket", action="store_true", help="the store is a bucket of a MinIO server")
    parser.add_argument("--only", default="", help="only strikes whose command, call and kind contain this text")
    parser.add_argument("--out", type=Path, help="append each strike to this file, as a line of JSON")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the job is ended and the store unmounted
    blows: list[Blow] = []
    bad = []
    for seed in range(asked.seed, asked.seed + asked.runs):
        print(f"run {seed}", flush=True)
        with tempfile.TemporaryDirectory(prefix="weir-vandal-") as folder:
            vandal = Vandal(seed, Path(folder), asked.strikes, asked.bucket, asked.only, _say)
            vandal.go()
        blows += vandal.blows
        wrong = [*vandal.wrong, *(one for blow in vandal.blows for one in blow.wrong)]
        _say(f"run {seed}: {'; '.join(wrong) or 'all right'}")
        if wrong:
            bad.append(seed)
        if asked.out:
            with asked.out.open("ab") as file:
                file.writelines(msgspec.json.encode(blow) + b"\n" for blow in vandal.blows)
    print("\n" + table_of(blows))
    met = sum(blow.met for blow in blows)
    print(f"\n{len(blows)} strikes, {met} met a savepoint, {f'WRONG: seeds {bad}' if bad else 'all right'}")
    sys.exit(1 if bad else 0)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    main()
