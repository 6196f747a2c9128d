"""Runs in which a person rewinds, replays or forks the job: `run_back(seed)`.

A person comes while the job runs. The JobMasters are dead, asleep, or run on until they are fenced; the newest epochs
may be damaged. The command dies between any two calls of the store and is given again. Invariants, besides all others:

target     the state that the job goes on from is that of the newest intact epoch
rewind     readers see exactly the output up to that epoch, and what comes after it once
replay     readers see all that was published, and what comes after that epoch again
fork       the new job goes on from that epoch with tables of its own; both jobs end with the right rows and state
dense      Spark can read the log of every table at every moment
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec

from engine.core.errors import Fenced, NothingIntact, StoreError
from engine.core.paths import JobPaths
from engine.graph.description import table_committer
from engine.protocol.config import CheckpointingMode
from engine.protocol.epoch_records import LogRecord, RecordKind
from engine.protocol.manifest import Manifest, ManifestRef
from engine.runtime.operators import sink
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.rewind import fork, go_back
from engine.snapshot.statefile import checksum
from tests.simulation import jobs
from tests.simulation.cluster import Cluster, Incarnation, MasterProcess
from tests.simulation.faults import STOPS, Plan, Storm, draw_plan, long_job
from tests.simulation.invariants import Checker
from tests.simulation.jobs import Seen
from tests.simulation.ports import Network
from tests.simulation.simulation import LIMIT_EVENTS, LIMIT_MS, clean_state
from tests.simulation.store import SimStore, StoreView
from tests.simulation.tables import small_bounds
from tests.simulation.world import Process, Violation, World
from tests.spark_log import Unreadable, spark_reads

FORK = "copy"
WAYS = ("rewind", "replay", "fork")
LONG_SHARE = 0.25


class BackChecker(Checker):
    """Follows a job through rewinds and replays: each takes the rows that were seen back to those of its target.

    The list of epochs stays dense: the numbers that a rewind skips are empty, and so are the epochs that it hides.
    """

    def __init__(self, store: SimStore, plan: Plan, job: str) -> None:
        super().__init__(store, plan.spec, plan.checkpoints, job)
        self.history: dict[int, tuple[Manifest, Seen, dict[str, int]]] = {}
        self._hidden: dict[int, set[str]] = {}  # by the epoch of the rewind: the files that it hides
        self._before: dict[int, int] = {}  # by the epoch of a rewind: the epoch before it
        self.newest_at_fork: int | None = None  # the newest intact epoch when the job was first asked for a fork

    def begin_as_fork(self, of: BackChecker, first: LogRecord) -> None:
        assert first.newest is not None
        manifest = self._read(first)
        _, seen, digests = of.history[of.target_of(manifest, of.newest_at_fork)]
        self._seen, self._digests = deepcopy(seen), dict(digests)

    def intact(self) -> list[int]:
        """Returns the epochs that can be restored, oldest first."""
        return [epoch for epoch, (manifest, _, _) in self.history.items() if self._is_intact(epoch, manifest)]

    def _is_intact(self, epoch: int, manifest: Manifest) -> bool:
        files = [(file.path, file.checksum) for state in manifest.subtasks for file in state.files]
        contents = [(self._store.content(path), expected) for path, expected in files]
        kept = all(data is not None and checksum(data) == expected for data, expected in contents)
        return kept and not self._lost(epoch)

    def _ref(self, epoch: int) -> ManifestRef:
        return next(r.newest for r in self.records if r.newest is not None and r.newest.epoch == epoch)

    def _lost(self, epoch: int) -> bool:
        data = self._store.content(self._ref(epoch).path)
        return data is None or checksum(data) != self._ref(epoch).checksum

    def target_of(self, manifest: Manifest, at_least: int | None = None) -> int:
        """Returns the epoch that a manifest is a copy of, and checks that no newer one is intact.

        A job that is forked runs on and may publish meanwhile: its fork may be of any epoch from `at_least` on.
        """
        intact = self.intact()
        of = [n for n, (m, _, _) in self.history.items() if (m.created_ms, m.ledger) == _birth(manifest)]
        allowed = intact[-1:] if at_least is None else [epoch for epoch in intact if epoch >= at_least]
        found = [epoch for epoch in allowed if epoch in of]  # an epoch and its copies look alike
        if not found:
            raise Violation("target", f"{self._job} goes on from one of the epochs {of}, and {intact} are intact")
        if manifest.rewound_to not in (None, found[-1]):
            raise Violation("target", f"the state of epoch {found[-1]} says that it is of {manifest.rewound_to}")
        return found[-1]

    def _read(self, record: LogRecord) -> Manifest:
        assert record.newest is not None
        manifest = msgspec.json.decode(self._durable(record.newest.path, record.newest.checksum), type=Manifest)
        for state in manifest.subtasks:
            for file in state.files:
                self._durable(file.path, file.checksum)
        if not record.newest.path.startswith(f"{self._job}/gen-{record.generation:04d}/"):
            raise Violation("one_owner", f"{record.newest.path} is published by generation {record.generation}")
        return manifest

    def _published(self, record: LogRecord) -> None:
        if record.kind is RecordKind.REWIND:
            self._went_back(record)
        else:
            super()._published(record)
        self.history[len(self.epochs)] = (self.epochs[-1], deepcopy(self._seen), dict(self._digests))

    def _went_back(self, record: LogRecord) -> None:
        manifest, before = self._read(record), len(self.epochs)
        self._watermarks, self._latest = {}, {}  # event time goes back with the state
        if self.visible < before:
            raise Violation("commit", f"epoch {manifest.epoch} is published before epoch {before} is committed")
        target = self.target_of(manifest)
        _, seen, digests = self.history[target]
        self._seen, self._digests = deepcopy(seen), dict(digests)
        hides = manifest.rewound_to is not None
        if hides:
            later = self.epochs[target:]
            self._hidden[manifest.epoch] = {c.payload["path"] for m in later for c in m.commits}
            self.epochs[target:] = [msgspec.structs.replace(m, commits=[]) for m in later]
        elif manifest.epoch != before + 1:
            raise Violation("epochs", f"epoch {manifest.epoch} follows epoch {before}")
        self._before[manifest.epoch] = before
        self.epochs += [manifest] * (manifest.epoch - before)
        way, which = "rewind" if hides else "replay", "an older epoch" if target < before else "the newest epoch"
        self._store.world.hits.add(f"went back: {way} to {which}")

    def _committed_epoch(self, path: str, data: bytes) -> None:
        table = path.split("/")[2]
        epoch = int(path.rsplit("/", 1)[1].removesuffix(".compact")) + 1
        if path in self._forgotten and epoch <= self._committed[table]:
            super()._committed_epoch(path, data)  # made again: its manifest is gone because it is old
            return
        if epoch in self.history and self._lost(epoch):  # its JobMaster had not committed it, and nobody else can
            self._store.world.hits.add("went back: an epoch without a manifest publishes nothing")
            kept = [c for c in self.epochs[epoch - 1].commits if c.uid != table]
            self._published_files -= {c.payload["path"] for c in self.epochs[epoch - 1].commits if c.uid == table}
            self.epochs[epoch - 1] = msgspec.structs.replace(self.epochs[epoch - 1], commits=kept)
        if self._before.get(epoch) == self._committed[table]:
            self._committed[table] = epoch - 1
            self._published_files -= {p for p in self._hidden.get(epoch, ()) if p.split("/")[2] == table}
        super()._committed_epoch(path, data)

    def read_as_spark(self, table: str) -> None:
        super().read_as_spark(table)
        prefix = f"{self._job}/tables/{table}/_spark_metadata/"
        names = [path.removeprefix(prefix) for path in self._store.durable if path.startswith(prefix)]
        try:
            spark_reads(names, lambda name: self._store.durable[prefix + name])
        except Unreadable as error:
            raise Violation("dense", f"{table}: {error}") from error


def _birth(manifest: Manifest) -> tuple[int, dict[str, int]]:
    return manifest.created_ms, manifest.ledger


class HeldCluster(Cluster):
    """A cluster whose supervisor starts nothing while a person is at work, and tells no standby to take over."""

    held = False

    def name_it(self, job: str, first: int) -> None:
        self.paths = JobPaths(job)
        self._first = first

    def start(self) -> None:
        if not self.held:
            self.incarnations.append(Incarnation(self, self._first + len(self.incarnations)))

    def take_over(self) -> bool:
        return not self.held and super().take_over()

    def stopped(self, master: MasterProcess) -> None:
        """Counts a job as finished only if its owner says so: a JobMaster that was fenced may finish what it held."""
        super().stopped(master)
        if master.job.attempt.generation < self._checker.records[-1].generation:
            self.finished = False
            self.master_died()

    def release(self) -> None:
        self.held = False
        self.master_died()


class Command(Process):
    """One try of a command; `done` gets its result, `failed` is called if it died or gave up."""

    def __init__(self, world: World, name: str, work: Callable[[Command], Any], store: SimStore) -> None:
        super().__init__(world, name)
        self._store = store
        self._work = work
        if world.random.random() < 0.6 and world.stormy:
            self.fuse = world.random.randrange(30)

    def begin(self, done: Callable[[Any], None], failed: Callable[[], None]) -> None:
        self._failed = failed

        def attempt() -> tuple[Any, Exception | None]:
            try:
                return self._work(self), None
            except (StoreError, Fenced, NothingIntact) as error:
                return None, error

        def ended(outcome: tuple[Any, Exception | None]) -> None:
            result, error = outcome
            self.world.log(f"  {self.name} ends: {result} {error}")
            if error is None or isinstance(error, NothingIntact):
                done(result)
            else:
                self.world.hits.add(f"command: {type(error).__name__}")
                failed()

        self.world.after(0.0, self, "begins", lambda: self.world.off_loop(self, "command", attempt, ended))

    def crashed(self) -> None:
        self.world.hits.add("command: dies")
        self._store.forget(self)
        self._failed()


class Person:
    """Goes back at the times that the seed says."""

    def __init__(self, run: Run, random: Random) -> None:
        self._run = run
        self._random = random
        self._tries = 0
        self._damaged = False
        self._ways = random.sample((*WAYS, "rewind", "replay"), k=random.choice((1, 1, 2, 3)))  # one fork at most
        self._wait()

    def _wait(self) -> None:
        """Comes for the next way when the job has some more epochs."""
        later = 6 if self._run.plan.spec.rows > 100 else 1
        self._at = len(self._run.checker.epochs) + later * self._random.choice((0, 1, 1, 2, 3))
        self._run.world.after(1.0 + 4 * self._random.random(), None, "a person looks", self._look)

    def _look(self) -> None:
        if self._run.cluster.finished or not self._ways:
            return
        if len(self._run.checker.epochs) < self._at:
            self._run.world.after(2.0, None, "a person looks", self._look)
        else:
            self._come(self._ways.pop())

    def _come(self, way: str) -> None:
        cluster, world = self._run.cluster, self._run.world
        cluster.held = True
        fate = self._random.choice(("dead", "dead", "asleep", "running"))
        for incarnation in cluster.running:
            if fate == "dead":
                world.kill(incarnation.master, "a person ends it")
            elif fate == "asleep":
                incarnation.master.sleep(self._random.choice((20, 60, 120)))
        if fate == "dead" and not cluster.running:
            self._damage()
        self._try(way)

    def _damage(self) -> None:
        """Changes or deletes a file of the newest epochs, and leaves an older one intact."""
        checker, store = self._run.checker, self._run.store
        intact = checker.intact()
        for epoch in intact[max(1, len(intact) - self._random.randrange(3)) :]:
            files = [file.path for state in checker.history[epoch][0].subtasks for file in state.files]
            path = self._random.choice([checker._ref(epoch).path, *files])
            store.world.log(f"  damages {path} of epoch {epoch}")
            self._damaged = True
            if self._random.random() < 0.5:
                store.durable[path] = b"damaged"
            else:
                del store.durable[path]

    def _try(self, way: str) -> None:
        self._tries += 1
        run, owner = self._run, f"cli{self._tries}"

        def work(command: Command) -> Any:
            view = StoreView(run.store, command)
            log = EpochLog(view, run.cluster.paths)
            if way == "fork":
                if run.checker.newest_at_fork is None:
                    run.checker.newest_at_fork = max(run.checker.intact(), default=None)
                return None if EpochLog(view, JobPaths(FORK)).last() else fork(log, FORK, owner, lambda: None)
            sinks = run.cluster.execution().graph.sinks
            committers = {uid: of.committer(view, run.cluster.paths) for uid, of in sinks}
            gone = partial(table_committer, store=view, paths=run.cluster.paths)
            return go_back(log, committers, gone, owner, lambda: None, hide=way == "rewind")

        def again() -> None:
            run.world.after(run.world.delay(5.0), None, f"{way} is tried again", lambda: self._try(way))

        Command(run.world, owner, work, run.store).begin(lambda _: self._done(way), again)

    def _done(self, way: str) -> None:
        if way == "fork":
            self._run.start_fork()
            if self._damaged:
                self._try("rewind")  # the original can't go on otherwise
                return
        self._damaged = False
        self._run.cluster.finished = False  # it may have finished before it was fenced
        self._run.cluster.release()
        self._wait()


@dataclass
class BackResult:
    seed: int
    violation: Violation | None
    hits: frozenset[str]
    trace: list[str]


class Run:
    def __init__(self, seed: int) -> None:
        self.plan = _plan(seed)
        self.world = World(seed)
        self.world.calm_ms = self.plan.storm_ms
        self.world.pauses = self.plan.pauses
        jobs.USER_FAULT.calls_left = self.plan.user_fault
        self.store = SimStore(self.world, self.plan.store)
        self.checker = BackChecker(self.store, self.plan, "job")
        self.cluster = self._cluster(self.checker, "job", 1)
        self.fork_checker: BackChecker | None = None
        self.fork_cluster: HeldCluster | None = None
        self.store.on_created = self._created
        self.store.on_deleted = self._deleted
        Storm(self.world, self.cluster, self.plan)
        Person(self, Random(f"person {seed}"))

    def _cluster(self, checker: BackChecker, job: str, first: int) -> HeldCluster:
        plan = self.plan
        network = Network(self.world, plan.network, plan.pace.network)  # one each: attempts of two jobs look alike
        cluster = HeldCluster(self.world, plan.spec, plan.checkpoints, self.store, network, plan.pace, checker)
        cluster.name_it(job, first)
        return cluster

    @property
    def forked(self) -> bool:
        return self.fork_checker is not None

    def _created(self, path: str, data: bytes) -> None:
        if path.startswith("job/"):
            self.checker._created(path, data)
            return
        if self.fork_checker is None:
            self.fork_checker = BackChecker(self.store, self.plan, FORK)
            self.store.on_created, self.store.on_deleted = self._created, self._deleted
            self.fork_checker.begin_as_fork(self.checker, msgspec.json.decode(data, type=LogRecord))
        self.fork_checker._created(path, data)

    def _deleted(self, path: str) -> None:
        checker = self.checker if path.startswith("job/") else self.fork_checker
        assert checker is not None
        checker._deleted(path)

    def start_fork(self) -> None:
        if self.fork_checker is not None and self.fork_cluster is None:
            self.world.hits.add("went back: fork")
            self.fork_cluster = self._cluster(self.fork_checker, FORK, 1001)
            self.fork_cluster.start()

    @property
    def both(self) -> list[tuple[HeldCluster, BackChecker]]:
        pairs = [(self.cluster, self.checker)]
        if self.fork_cluster is not None and self.fork_checker is not None:
            pairs.append((self.fork_cluster, self.fork_checker))
        return pairs

    def live(self) -> None:
        self.cluster.start()
        self._wait()
        for cluster, checker in self.both:
            if checker.visible < len(checker.epochs):
                cluster.finished = False
                cluster.start()
        self._wait()
        for _, checker in self.both:
            checker.check_finished()
            state, clean = checker.final_state(), clean_state(self.plan.spec)
            if state != clean:
                names = sorted(name for name in state.keys() | clean.keys() if state.get(name) != clean.get(name))
                raise Violation("state_as_without_faults", f"{names[0]}: {state.get(names[0])}, {clean.get(names[0])}")

    def _wait(self) -> None:
        finished = lambda: all(cluster.finished and not cluster.held for cluster, _ in self.both)  # noqa: E731
        if not self.world.run(finished, LIMIT_MS, 2 * LIMIT_EVENTS):
            raise Violation("finishes", f"not finished after {self.world.now_ms:.0f} ms, {self.world.events} events")
        ended = lambda: not any(cluster.running for cluster, _ in self.both)  # noqa: E731
        self.world.run(ended, self.world.now_ms + 400, self.world.events + 5_000)


def _plan(seed: int) -> Plan:
    """A plan of the usual kind, with enough epochs to go back to. More jobs are long: their tables are folded often."""
    plan = draw_plan(seed)
    spec, checkpoints, pace = plan.spec, plan.checkpoints, plan.pace
    if Random(f"folded {seed}").random() < LONG_SHARE and not spec.folder:
        spec, checkpoints, pace = long_job(spec, checkpoints, pace)
    checkpoints = msgspec.structs.replace(
        checkpoints,
        mode=CheckpointingMode.EXACTLY_ONCE,
        interval_ms=checkpoints.interval_ms or 4,
        retained=Random(f"retained {seed}").choice((1, 2, 3, 3)),
    )
    blows = tuple(blow for blow in plan.blows if blow[1] not in ("cancel", STOPS))
    return replace(plan, spec=replace(spec, folded=True), checkpoints=checkpoints, pace=pace, blows=blows)


def run_back(seed: int) -> BackResult:
    run, violation = Run(seed), None
    clean_state(run.plan.spec)
    jobs.USER_FAULT.calls_left = run.plan.user_fault
    try:
        with small_bounds(), patch.object(sink, "ROLL_BYTES", run.plan.roll_bytes):
            run.live()
    except Violation as error:
        violation = error
    finally:
        run.world.close()
    return BackResult(seed, violation, frozenset(run.world.hits), run.world.trace)
