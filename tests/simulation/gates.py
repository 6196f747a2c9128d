"""Runs in which every table has a gate: `run_gated(seed)`.

The gates refuse the records of which the seed says so. They answer at once, late, twice, never, or with an error; a
person releases, discards or has them asked again, also about epochs that are over. All other faults of the seed happen
at the same time. Invariants, besides all others:

gate       a row that the gate refuses is in no table, unless a person has released exactly this checkpoint, or the
           policy lets rows pass and the gate had said nothing in time; dead letters are rows that were refused
verdict    the manifest of every epoch has the verdict on each gated sink with rows, with their true numbers
no_loss, no_duplicate, … also count discarded rows and dead letters: each record is in one of these, once
ledger     counts and digests are those of the rows in the table; the others are `withheld`
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.connectors.table.committer import DEAD_LETTER
from engine.core.gates import Gate
from engine.jobmaster import events
from engine.jobmaster.actions import Outcome
from engine.protocol.gate import Decision, Expected, GateAnswer, GateQuestion, OnFail, Ruling
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Manifest
from engine.runtime.operators import sink
from engine.state.key_hash import hash_columns
from tests.simulation import jobs
from tests.simulation.cluster import Cluster, MasterProcess
from tests.simulation.faults import Plan, Storm, draw_plan
from tests.simulation.invariants import Checker, _tuples
from tests.simulation.jobs import JobSpec, Rows
from tests.simulation.ports import Network
from tests.simulation.simulation import LIMIT_EVENTS, LIMIT_MS
from tests.simulation.store import SimStore
from tests.simulation.tables import small_bounds
from tests.simulation.world import Violation, World

TIMEOUT_MS = 25
STOPS = "stops the job before epoch"

Judged = tuple[AttemptId, int, str]
"""The attempt, the checkpoint and the sink that a gate is asked about."""


@dataclass(frozen=True)
class Rule:
    """Refuses the records of these remainders. `mended`: after a stop, a person has mended what was wrong."""

    every: int
    first: int

    def refuses(self, n: int) -> bool:
        return n % self.every == self.first


class GateChecker(Checker):
    """Knows what the gate refuses, and computes from the files what each epoch does with it."""

    run: Run

    def __init__(self, store: SimStore, plan: Plan) -> None:
        super().__init__(store, plan.spec, plan.checkpoints)
        self._out: dict[str, Rows] = {table: [] for table in plan.spec.tables}
        self._withheld: Counter[str] = Counter()
        self._handled: set[Any] = set()  # identities of committables that an epoch has dealt with
        self._splits = plan.spec.gate is not None and plan.spec.gate.on_fail is OnFail.DEAD_LETTER
        if self._splits:
            self._committed |= {f"{table}{DEAD_LETTER}": 0 for table in plan.spec.tables}

    def _publish_rows(self, manifest: Manifest) -> None:
        verdicts = {one.sink: one for one in manifest.verdicts}
        born = [c for c in manifest.carried if c.identity not in self._handled]
        for table in self._spec.tables:
            files = [c.payload["path"] for c in born if c.uid == table]
            made = self._rows_of(files)
            out = self._published_rows(manifest, table, table)
            dead = self._published_rows(manifest, table, f"{table}{DEAD_LETTER}") if self._splits else []
            verdict = verdicts.get(table)
            if verdict is None:
                if made:
                    raise Violation("verdict", f"epoch {manifest.epoch} has rows of {table} and no verdict on them")
                continue
            refused = sum(self.run.rule_at(manifest).refuses(row[0]) for row in made)
            if verdict.rows != len(made) or verdict.withheld != len(made) - len(out):
                raise Violation("verdict", f"epoch {manifest.epoch}: {verdict}; {len(made)} rows, {len(out)} published")
            if verdict.decision is not Decision.UNJUDGED and verdict.refused not in (refused, 0):
                raise Violation("verdict", f"epoch {manifest.epoch}: {verdict}; {refused} rows are to be refused")
            self._check_decision(manifest, table, verdict.decision, out, dead)
            lost = Counter(made) - Counter(out) - Counter(dead)
            if lost and verdict.decision is not Decision.DISCARDED:
                raise Violation("no_loss", f"epoch {manifest.epoch}: {table} lacks {sorted(lost)[:4]}")
            self._seen.tables[table] += made if verdict.decision is Decision.DISCARDED else out + dead
            self._out[table] += out
            self._withheld[table] += len(made) - len(out)
        self._handled |= {c.identity for c in manifest.carried}
        self._see_positions(manifest)

    def _check_decision(self, manifest: Manifest, table: str, decision: Decision, out: Rows, dead: Rows) -> None:
        rule, where = self.run.rule_at(manifest), f"epoch {manifest.epoch}, {table}, {decision.value}"
        judged = (manifest.attempt, manifest.checkpoint, table)
        visible = [row for row in out if rule.refuses(row[0])]
        self._store.world.hits.add(f"gate: {decision.value}")
        if decision in (Decision.RELEASED, Decision.DISCARDED):
            ruling = Ruling.RELEASE if decision is Decision.RELEASED else Ruling.DISCARD
            if self.run.ruled.get(judged[:2]) is not ruling:
                raise Violation("gate", f"{where}: nobody has decided so; {self.run.ruled.get(judged[:2])}")
        if decision is Decision.UNJUDGED and judged in self.run.refused:
            raise Violation("gate", f"{where}: the gate had refused it in time")
        if visible and decision not in (Decision.RELEASED, Decision.UNJUDGED):
            raise Violation("gate", f"{where}: {visible[:4]} were refused, and readers see them")
        if dead and (decision is not Decision.DEAD_LETTER or not all(rule.refuses(row[0]) for row in dead)):
            raise Violation("gate", f"{where}: {dead[:4]} are dead letters, and were not refused")
        if out and decision is Decision.DISCARDED:
            raise Violation("gate", f"{where}: {out[:4]} were discarded, and readers see them")

    def _published_rows(self, manifest: Manifest, uid: str, table: str) -> Rows:
        commits = [c for c in manifest.commits if c.uid == uid and c.payload["path"].split("/")[2] == table]
        rows: Rows = []
        for committable in commits:
            path = committable.payload["path"]
            if path in self._published_files:
                raise Violation("no_duplicate", f"{path} is published by two epochs")
            self._published_files.add(path)
            data = self._durable(path, None)
            if len(data) != committable.payload["size"]:
                raise Violation("durable", f"{path} has {len(data)} bytes, not {committable.payload['size']}")
            found = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
            self.tables.rows([path])
            rows += _tuples(found)
            if uid == table:
                digest = np.add.reduce(hash_columns([c.combine_chunks() for c in found.columns]))
                self._digests[uid] = (self._digests[uid] + int(digest)) % (1 << 64)
        return rows

    def _rows_of(self, files: list[str]) -> Rows:
        rows: Rows = []
        for path in files:
            rows += _tuples(pq.ParquetFile(pa.BufferReader(self.run.written[path])).read(use_threads=False))
        return rows

    def _check_ledger(self, manifest: Manifest) -> None:
        everything, self._seen.tables = self._seen.tables, self._out
        super()._check_ledger(manifest)
        self._seen.tables = everything
        for table, rows in self._withheld.items():
            if manifest.ledger.get(f"withheld:{table}", 0) != rows:
                raise Violation("ledger", f"epoch {manifest.epoch}: {rows} rows of {table} are withheld")


class GatedCluster(Cluster):
    """A cluster whose JobMasters ask gates, and whose job is started again when a gate has stopped it."""

    run: Run

    def on_ask(self, master: MasterProcess, question: GateQuestion) -> None:
        self.run.asked(master, question)

    def on_end_gate(self, master: MasterProcess) -> None:
        self.world.hits.add("gate: its process is ended")
        self.run.answers_lost(master)

    def on_event(self, master: MasterProcess, event: events.AnyEvent) -> None:
        if isinstance(event, events.EpochHeld):
            self.run.person_comes(master, event)

    def stopped(self, master: MasterProcess) -> None:
        if master.outcome is not Outcome.FAILED or STOPS not in master.reason:
            super().stopped(master)
            return
        self.world.hits.add("gate: stops the job")
        if self.run.spec_gate.on_fail is not OnFail.STOP and self.run.spec_gate.on_timeout.value != "stop":
            raise Violation("gate", f"{master.name} is stopped: {master.reason}")
        self.run.stops += 1
        self.master_died()


@dataclass
class GateResult:
    seed: int
    violation: Violation | None
    hits: frozenset[str]
    trace: list[str]


class Run:
    def __init__(self, seed: int) -> None:
        self.random = Random(f"gates {seed}")
        self.plan = _plan(seed)
        assert self.plan.spec.gate is not None
        self.spec_gate = self.plan.spec.gate
        self.rule = Rule(self.random.choice((5, 11, 17, 29)), self.random.randrange(5))
        self.world = World(seed)
        self.world.calm_ms = self.plan.storm_ms
        self.world.pauses = self.plan.pauses
        self.store = SimStore(self.world, self.plan.store)
        self.written: dict[str, bytes] = {}
        self._write, self.store.write = self.store.write, self._wrote  # type: ignore[method-assign]
        self.ruled: dict[tuple[AttemptId, int], Ruling] = {}
        self.refused: set[Judged] = set()
        self.stops = 0
        self._mended_from: int | None = None  # the generation from which on nothing is refused
        self._first_asked_ms: dict[Judged, float] = {}
        self._newest: dict[Judged, int] = {}
        self._lost: set[tuple[str, int]] = set()  # questions whose answer was lost with the process of the gates
        self._open: dict[str, set[int]] = {}
        self.checker = GateChecker(self.store, self.plan)
        self.checker.run = self
        network = Network(self.world, self.plan.network, self.plan.pace.network)
        self.cluster = GatedCluster(
            self.world, self.plan.spec, self.plan.checkpoints, self.store, network, self.plan.pace, self.checker
        )
        self.cluster.run = self
        Storm(self.world, self.cluster, self.plan)

    def _wrote(self, path: str, data: bytes, process: Any) -> None:
        if path.endswith(".parquet"):
            self.written[path] = bytes(data)
        self._write(path, data, process)

    def rule_at(self, manifest: Manifest) -> Rule:
        return self._rule_of(manifest.attempt.generation)

    def _rule_of(self, generation: int) -> Rule:
        """After two stops a person has mended the input: what was refused is right now."""
        if self.stops >= 2 and self._mended_from is None:
            self._mended_from = self.checker.records[-1].generation + 1
        mended = self._mended_from is not None and generation >= self._mended_from
        return Rule(1, -1) if mended else self.rule

    # --- the gates ---

    def asked(self, master: MasterProcess, question: GateQuestion) -> None:
        """Answers as the chance of the run says: at once, late, twice, never, or with an error."""
        world, attempt = self.world, master.job.attempt
        judged = (attempt, question.checkpoint, question.sink)
        self._first_asked_ms.setdefault(judged, world.now_ms)
        self._newest[judged] = question.number
        self._open.setdefault(master.name, set()).add(question.number)
        way = world.random.random()
        if not world.stormy or way < 0.5:
            self._answer(master, judged, question, 3 * world.random.random())
        elif way < 0.65:
            world.hits.add("gate: answers late")
            self._answer(master, judged, question, TIMEOUT_MS * (0.5 + 3 * world.random.random()))
        elif way < 0.8:
            world.hits.add("gate: answers twice")
            self._answer(master, judged, question, 3 * world.random.random())
            self._answer(master, judged, question, 60 * world.random.random())
        elif way < 0.9:
            world.hits.add("gate: fails")
            answer = GateAnswer(question.number, error="simulated error of a gate")
            self._deliver(master, judged, question, answer, 3 * world.random.random())
        else:
            world.hits.add("gate: never answers")

    def _answer(self, master: MasterProcess, judged: Judged, question: GateQuestion, delay_ms: float) -> None:
        rule, rows, named = self._rule_of(judged[0].generation), 0, {}
        for path in question.files:
            found = self.checker._rows_of([path])
            bad = [index for index, row in enumerate(found) if rule.refuses(row[0])]
            rows += len(found)
            if bad:
                named[path] = bad
        refused = sum(map(len, named.values()))
        expected = Expected("the rule of the run", not refused, refused)
        answer = GateAnswer(question.number, rows, refused, [expected], named)
        self._deliver(master, judged, question, answer, delay_ms)

    def _deliver(
        self, master: MasterProcess, judged: Judged, question: GateQuestion, answer: GateAnswer, delay_ms: float
    ) -> None:
        def arrive() -> None:
            if (master.name, question.number) in self._lost:
                return
            in_time = self.world.now_ms < self._first_asked_ms[judged] + TIMEOUT_MS
            newest = self._newest[judged] == question.number and master.job.attempt == judged[0]
            if answer.refused and in_time and newest:
                self.refused.add(judged)
            master._do(lambda: master.job.on_gate_answer(answer, self.world.now_ms))

        self.world.after(delay_ms, master, f"a gate answers question {question.number}", arrive)

    def answers_lost(self, master: MasterProcess) -> None:
        """The process of the gates is ended: sometimes with what it was about to say."""
        if self.world.random.random() < 0.5:
            self._lost |= {(master.name, number) for number in self._open.get(master.name, ())}

    # --- a person ---

    def person_comes(self, master: MasterProcess, event: events.EpochHeld) -> None:
        random, world = self.random, self.world
        ruling = random.choice((Ruling.RELEASE, Ruling.RELEASE, Ruling.DISCARD, Ruling.RETRY))
        decide = partial(self._rules, master, event.checkpoint, ruling)
        world.after(30 * random.random(), master, f"a person decides: {ruling.value}", decide)
        if random.random() < 0.3:  # a second person, who may come long after
            late = partial(self._rules, master, event.checkpoint, random.choice(list(Ruling)))
            world.after(80 * random.random(), master, "another person decides", late)

    def _rules(self, master: MasterProcess, checkpoint: int, ruling: Ruling) -> None:
        def decide() -> Any:
            attempt, held = master.job.attempt, {one.checkpoint for one in master.job.held}
            before = self.ruled.get((attempt, checkpoint))
            if ruling is not Ruling.RETRY and checkpoint in held:
                self.ruled[attempt, checkpoint] = ruling
            refusal, actions = master.job.rule(checkpoint, ruling, self.world.now_ms)
            if refusal is not None and before is not None:
                self.ruled[attempt, checkpoint] = before
            elif refusal is not None:
                self.ruled.pop((attempt, checkpoint), None)
            if refusal is not None and checkpoint in held:  # another gate is still asked
                self.world.hits.add("person: comes too early")
                again = partial(self._rules, master, checkpoint, ruling)
                self.world.after(5.0, master, "a person comes again", again)
                return actions
            self.world.hits.add("person: comes too late" if refusal else f"person: {ruling.value}")
            if refusal is None and ruling is Ruling.RETRY:
                self._first_asked_ms |= {
                    judged: self.world.now_ms for judged in self._first_asked_ms if judged[:2] == (attempt, checkpoint)
                }
            return actions

        master._do(decide)

    # --- the run ---

    def live(self) -> None:
        self.cluster.start()
        self._wait()
        while self.checker.visible < len(self.checker.epochs):
            self.cluster.finished = False
            self.cluster.start()
            self._wait()
        self.checker.check_finished()

    def _wait(self) -> None:
        world, cluster = self.world, self.cluster
        if not world.run(lambda: cluster.finished, world.now_ms + LIMIT_MS, world.events + LIMIT_EVENTS):
            phases = ", ".join(f"{i.name} {i.master.job.phase.name}" for i in cluster.running)
            raise Violation("finishes", f"not finished after {world.now_ms:.0f} ms ({phases})")
        world.run(lambda: not cluster.running, world.now_ms + 400, world.events + 5_000)


def _plan(seed: int) -> Plan:
    """A plan of the usual kind whose rows are single records."""
    plan, random = draw_plan(seed), Random(f"gated {seed}")
    of = plan.spec
    on_fail = random.choice(("hold", "hold", "hold", "dead_letter", "dead_letter", "stop"))
    on_timeout = random.choice(("hold", "hold", "pass", "stop"))
    spec = JobSpec(
        kind=random.choice(("copy", "copy", "process", "reduce")),
        parallelism=of.parallelism,
        splits=2,
        rows=2 * min(of.rows, 36),
        batch_rows=of.batch_rows,
        folded=of.folded,
        gate=Gate.sql("n >= 0", on_fail=on_fail, on_timeout=on_timeout, timeout=TIMEOUT_MS),
    )
    return replace(plan, spec=spec, storm_ms=2 * plan.storm_ms)  # so long that most epochs are judged in it


def run_gated(seed: int) -> GateResult:
    run, violation = Run(seed), None
    jobs.USER_FAULT.calls_left = run.plan.user_fault
    try:
        with small_bounds(), patch.object(sink, "ROLL_BYTES", run.plan.roll_bytes):
            run.live()
    except Violation as error:
        violation = error
        run.world.log(f"VIOLATION {error}")
    finally:
        run.world.close()
    return GateResult(seed, violation, frozenset(run.world.hits), run.world.trace)


def main() -> None:
    """Runs seeds: `python -m tests.simulation.gates FIRST COUNT`; with one seed it prints its trace."""
    import sys

    first, count = int(sys.argv[1]), int(sys.argv[2])
    hits: Counter[str] = Counter()
    for seed in range(first, first + count):
        result = run_gated(seed)
        hits.update(result.hits)
        if count == 1:
            print("\n".join(line for line in result.trace if not line.endswith(" - net")))
        if result.violation is not None:
            print(f"seed {seed}: {result.violation}", flush=True)
    for name in sorted(name for name in hits if name.startswith(("gate", "person"))):
        print(f"{hits[name]:6} {name}")


if __name__ == "__main__":
    main()
