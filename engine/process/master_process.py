"""`MasterProcess` runs a `JobMaster` beside a Spark session: it carries out its actions, and answers over HTTP.

Invariant: one thread decides. Messages of slots, requests, finished I/O and the end of the Spark job reach it through
its mailbox.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.core.errors import (
    CorruptSnapshot,
    Fenced,
    ForeignSnapshot,
    NoAnswer,
    SparkLost,
    StoreError,
    UserFunctionError,
    WeirError,
)
from engine.core.paths import JobPaths
from engine.core.sinks import Committer, Sink
from engine.core.syncing import EndsOnFailedSync, end_by_raising
from engine.graph.execution_graph import ExecutionGraph
from engine.graph.scalable import ScalableJob
from engine.host.last_rehearsal import last_rehearsal
from engine.host.last_upgrade import last_upgrade
from engine.host.launch import MasterLaunch
from engine.host.lifeline import Lifeline
from engine.host.mailbox import Mailbox
from engine.host.processes import identity
from engine.host.rehearsal_request import AskedRehearsal, RehearsalStatus
from engine.host.run_folder import (
    Deaths,
    LastHeartbeat,
    MasterAddress,
    MasterExit,
    RunFolder,
    StandbySign,
    SupervisorSign,
)
from engine.host.system import SystemClock
from engine.host.upgrade_record import UpgradeStatus
from engine.host.upgrade_request import AskedUpgrade
from engine.jobmaster import events
from engine.jobmaster.actions import (
    Action,
    AskGate,
    EndGate,
    KillSlot,
    Note,
    Outcome,
    ReleaseSlots,
    RunOffLoop,
    Send,
    StartSlots,
    Stop,
)
from engine.jobmaster.collecting import Collection, collect
from engine.jobmaster.events import AnyEvent, stamped
from engine.jobmaster.master import JobMaster, MasterConfig, Phase
from engine.jobmaster.rescaling import Answer, Scale
from engine.jobmaster.savepoints import Refusal, check_new_savepoint
from engine.jobmaster.status import JobStatus, StandbyStatus, VertexStatus, describe, describe_vertex
from engine.network.control import ControlServer
from engine.network.places import holds_sockets
from engine.observe.gate_routes import GateStatus
from engine.observe.history import History
from engine.observe.http import RestServer
from engine.observe.logs import MASTER, LogHandler, LogWriter
from engine.observe.savepoints import LOST, SavepointRecord, SavepointRecords, with_place, with_store
from engine.observe.timeline import Timeline
from engine.process.bucket_chores import BucketChores
from engine.process.from_savepoint import delete_savepoint
from engine.process.gates import GateProcess, setup_of
from engine.process.master_io import Queue, master_offload, queue_of
from engine.protocol.failures import Fault
from engine.protocol.gate import GateAnswer, Ruling
from engine.protocol.messages import EndProcess, SlotMessage
from engine.protocol.remedy import Stage
from engine.protocol.savepoint import SavepointRequest, StopRequest
from engine.protocol.scaling import Scaling
from engine.snapshot.epoch_log import EpochLog
from engine.snapshot.inputs import place_newest_inputs
from engine.snapshot.query import StateOfKey, look_up
from engine.spark.inputs import SparkInputs
from engine.spark.scratch import private_scratch
from engine.spark.session import LOOPBACK, is_local, spark_master_of
from engine.spark.slot_process import SlotLaunch
from engine.spark.slot_tasks import SlotJob
from engine.spark.watch import SparkWatch, stopped
from engine.store.opening import open_store
from engine.store.places import open_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK_S = 0.02
HEARTBEAT_MS = 1000
MESSAGES_PER_TICK = 256
"""A flood of messages must not hold up the leases of the slots."""
LEASE_S = 15.0
END_PATIENCE_S = 5.0

logger = logging.getLogger("weir.master")


_NO_DEATHS = Deaths(0, 0, Fault.OUTSIDE, "", 0, 0)
_ATTACHED = Refusal("the job runs inside a script or a notebook: end it there, change it, and start it again")
_FENCED = Stop(Outcome.FENCED, "another JobMaster runs this job")


class MasterProcess:
    """`build` makes the job again in each slot; slots append `module_path` to their module search path.

    `orphaned` returns True once the process that would stop this job is gone; the job is then cancelled. The deciding
    thread gives signs of life on `lifeline`. `begun`: the job has a log already. `spark_lost` may end the process, on
    any thread; without it, `run` raises. `on_event` gets each event on the deciding thread. With `told_to_take_over`
    this is a standby: it shows and claims nothing until that returns True. `start_upgrade` starts the process of an
    upgrade, `start_rehearsal` that of a rehearsal, and returns its id; without them the job can't be upgraded.
    """

    def __init__(
        self,
        launch: MasterLaunch,
        job: ScalableJob,
        build: Callable[[], ScalableJob],
        session: SparkSession,
        *,
        module_path: tuple[str, ...] = (),
        orphaned: Callable[[], bool] = lambda: False,
        lifeline: Lifeline | None = None,
        begun: bool = False,
        spark_lost: Callable[[SparkLost], None] | None = None,
        on_event: Callable[[AnyEvent], None] = lambda event: None,
        told_to_take_over: Callable[[], bool] | None = None,
        start_upgrade: Callable[[AskedUpgrade], str | Refusal] | None = None,
        start_rehearsal: Callable[[AskedRehearsal], str | Refusal] | None = None,
    ) -> None:
        self._launch = launch
        self._job = job
        self._graph = job.at(launch.scaling)
        self._build = build
        self._session = session
        self._spark_ui = session.sparkContext.uiWebUrl
        self._module_path = module_path
        self._orphaned = orphaned
        self._lifeline = lifeline or Lifeline()
        self._begun = begun
        self._spark_lost = spark_lost or self._raise
        self._on_event = on_event
        self._told_to_take_over = told_to_take_over
        self._start_upgrade = start_upgrade
        self._start_rehearsal = start_rehearsal
        self._folder = RunFolder(launch.store, launch.name)
        self._clock = SystemClock()
        self._mailbox: Mailbox[Callable[[], None]] = Mailbox()
        self._offload = EndsOnFailedSync(master_offload(self._mailbox.put), end_by_raising)
        self._history = History(launch.store, launch.name)
        self._chores = BucketChores(launch, self._folder, self._history, self._offload)
        self._store = open_store(launch.store)
        self._execution = ExecutionGraph(self._graph)
        self._paths = JobPaths(launch.name)
        self._end: Stop | None = None
        self._heartbeat_at_ms = 0.0
        self._heartbeat_phase: Phase | None = None
        self._beating = False
        self._began = False
        self._rest: RestServer | None = None
        self._gates: GateProcess | None = None
        self._standby: StandbySign | None = None
        self._inputs = SparkInputs(
            self._graph, session, self._store, self._paths, self._clock, self._offload, self._note
        )

    def run(self) -> MasterExit:
        """Runs the job until it has ended. Stops everything that it started; the Spark session is the caller's."""
        watch = SparkWatch(lambda: stopped(self._session), self._launch.jobmaster_timeout_s, self._on_spark_lost)
        watch.start()
        try:
            with private_scratch() as sockets:
                return self._run(watch, sockets)
        finally:
            watch.stop()

    def _run(self, watch: SparkWatch, sockets: Path) -> MasterExit:
        self._token = secrets.token_urlsafe(32)  # slots and clients of an earlier JobMaster have another
        nonce = secrets.token_hex(16)
        # Each JobMaster has a file of its own: the slots of one that is being replaced still read theirs.
        nonce_path = self._paths.nonce(secrets.token_hex(8))
        self._store.write(nonce_path, nonce.encode())
        epoch_log = EpochLog(self._store, self._paths, self._begun, self._folder.sign)
        committers = {uid: self._committer(uid, sink) for uid, sink in self._graph.sinks}
        config = MasterConfig(
            slots_timeout_ms=self._launch.slots_timeout_s * 1000,
            heartbeat_timeout_ms=self._launch.heartbeat_timeout_s * 1000,
            allows=self._launch.allows,
            probation_ms=self._launch.probation_s * 1000,
            slow_step_ms=self._launch.slow_step_s * 1000,
            step_timeout_ms=self._launch.step_timeout_s * 1000,
            deploy_timeout_ms=self._launch.step_timeout_s * 1000,
        )
        owner = f"{os.getpid()}-{secrets.token_hex(8)}"
        scale = Scale(self._launch.scaling, self._job.at, self._save_scaling, self._saved_scaling, self._most_slots())
        self.master = JobMaster(
            self._execution,
            epoch_log,
            committers,
            owner,
            nonce,
            self._clock.wall_ms,
            random.random,
            config,
            scale,
            standby=self._told_to_take_over is not None,
        )
        self._control = ControlServer(
            self._launch.name, self._place(sockets), self._token, self._on_message, self._on_gone
        )
        self._nonce = Path(nonce_path).name
        self._to_logs = LogHandler(LogWriter(self._folder.logs, MASTER))
        slot_launch = SlotLaunch(
            self._launch.name,
            self._build,
            self._launch.store,
            nonce_path,
            self._control.address,
            self._token,
            max(LEASE_S, 1.5 * self._launch.heartbeat_timeout_s),
            self._launch.heartbeat_timeout_s,
            self._module_path,
            None if self._launch.slot_memory_mb is None else self._launch.slot_memory_mb * 1_000_000,
            self._launch.scaling,
        )
        self._slot_job = SlotJob(self._session, slot_launch, self._execution, self._on_slot_job_end, logger.warning)
        try:
            if self._told_to_take_over is None:
                self._lifeline.show(Stage.PREPARING)
                self._prepare_inputs()
                self._begin()
            self._slot_job.start()
            self._loop()
            watch.stop()
            self._lifeline.show(Stage.ENDING)
            self._slot_job.stop(END_PATIENCE_S)
            self._control.close(END_PATIENCE_S)
            self._finish_history()
            return self._leave()
        finally:
            self._forget_nonce(nonce_path)
            if self._gates is not None:
                self._gates.close()
            if self._rest is not None:  # last: until `MasterExit` can be read, clients hear that the job is ending
                self._rest.stop()
            logger.removeHandler(self._to_logs)

    def _prepare_inputs(self) -> None:
        """Writes what slots read. A job that begins from a copied snapshot has those of the snapshot.

        What can't be read now is left to the claim and the restore, which wait for it or say what to do.
        """
        with contextlib.suppress(StoreError, CorruptSnapshot, ForeignSnapshot):
            place_newest_inputs(EpochLog(self._store, self._paths, self._begun))
        self._inputs.prepare()

    @property
    def _stands_by(self) -> bool:
        return self.master.phase is Phase.STANDBY

    def _begin(self) -> None:
        """Reads what earlier JobMasters left, and answers over HTTP from now on. The claim follows."""
        self._folder.hear_elsewhere(self._launch)
        self.timeline = Timeline(self._history.events())
        self.savepoints = SavepointRecords(self._history.savepoints())
        self.savepoints.settle(LOST)
        # A standby was started with the parallelism of that moment.
        self._folder.repeat_launch(msgspec.structs.replace(self._launch, scaling=self._saved_scaling()))
        setup = setup_of(self._graph.sinks, self._launch.store)
        self._gates = GateProcess(setup, sys.path, self._on_gate_answer) if setup is not None else None
        self._last_seen = self._folder.read_heartbeat()
        self._deaths = self._folder.read_deaths() or _NO_DEATHS
        self._rest = RestServer(self._host(), self._token, self)
        self._rest.start()
        logger.addHandler(self._to_logs)
        self._began = True
        if not self._folder.belongs_to(self._launch):
            self._end = _FENCED  # before it claims the job: it would take it away from a later start

    def _take_over(self) -> None:
        """Does what a JobMaster does before it claims the job. The one before has written the job's inputs already."""
        logger.info("taking over: the JobMaster is gone")
        self._prepare_inputs()
        self._folder.forget_nonces(but=self._nonce)
        self._begin()
        if self._end is None:
            self._carry_out(self.master.take_over(self._clock.now_ms()))

    def _committer(self, uid: str, sink: Sink) -> Committer:
        try:
            return sink.committer(self._store, self._paths)
        except (WeirError, OSError):
            raise
        except Exception as error:
            raise UserFunctionError(uid, 0, "committer()", error) from error

    def _leave(self) -> MasterExit:
        assert self._end is not None
        end = _FENCED if self._replaced() else self._end  # a JobMaster that slept may not know of its successor
        ended = MasterExit(end.outcome, end.reason, end.raised)
        if not self._began:  # the end of a standby is not the end of the job
            return ended
        if end.outcome is not Outcome.FENCED:
            self._lifeline.tell_end(ended)
        if end.outcome is Outcome.STOPPED:
            self._folder.want_stopped_here("stop")
        if end.outcome in (Outcome.STOPPED, Outcome.CANCELLED):
            with contextlib.suppress(StoreError):  # the job has ended, whatever its bucket does now
                self._folder.share_desired()
        self._folder.write_exit(ended, self._launch)
        return ended

    def _most_slots(self) -> int | None:
        """Returns how many slots Spark can run. A cluster may have room or get some; who waits for it will see."""
        return self._launch.max_slots if is_local(spark_master_of(self._session)) else None

    def _save_scaling(self, scaling: Scaling) -> None:
        """Makes the parallelism durable: every later JobMaster of this start begins with it."""
        if self._replaced():
            raise Fenced(_FENCED.reason)
        self._folder.rescaled(self._launch, scaling)

    def _saved_scaling(self) -> Scaling:
        last = self._folder.read_launch()
        return last.scaling if last is not None and last.id == self._launch.id else self._launch.scaling

    def _forget_nonce(self, path: str) -> None:
        with contextlib.suppress(OSError, StoreError):
            self._store.delete(path)

    def _finish_history(self) -> None:
        """Waits until the last events are written, because the process may end right after this."""
        written = threading.Event()
        self._offload.submit(Queue.HISTORY, self._history.flush, _written)
        self._offload.submit(Queue.HISTORY, written.set, _written)
        written.wait(END_PATIENCE_S)

    def _host(self) -> str:
        """Returns the address at which slots reach the driver: loopback, unless they run on other machines."""
        if is_local(spark_master_of(self._session)):
            return LOOPBACK
        return self._session.sparkContext.getConf().get("spark.driver.host", LOOPBACK)

    def _place(self, sockets: Path) -> str:
        """Returns where the JobMaster and its slots listen for each other: a folder of sockets if the job is local."""
        local = is_local(spark_master_of(self._session)) and holds_sockets(sockets)
        return str(sockets) if local else self._host()

    def _loop(self) -> None:
        while self._end is None:
            work, done = self._mailbox.take(self._patience_s()), 0
            while work is not None and self._end is None:
                work()
                done += 1
                work = self._mailbox.take() if done < MESSAGES_PER_TICK else None
            if self._end is None:
                self._carry_out(self.master.on_tick(self._clock.now_ms()))
            self._beat()
            if self._stands_by:
                if self._told_to_take_over is not None and self._told_to_take_over():
                    self._take_over()
            else:
                self._chores.poll(self._clock.now_ms())
                self._inputs.poll()
            if self._orphaned():
                self._carry_out(self.master.cancel(self._clock.now_ms(), "its supervisor has died"))

    def _beat(self) -> None:
        """Writes the heartbeat, and looks whether a JobMaster with a higher generation has taken over."""
        now_ms, phase = self._clock.now_ms(), self.master.phase
        if now_ms < self._heartbeat_at_ms and phase is self._heartbeat_phase:
            return
        self._heartbeat_at_ms, self._heartbeat_phase = now_ms + HEARTBEAT_MS, phase
        generation = self.master.attempt.generation
        known = phase not in (Phase.STANDBY, Phase.FENCING, Phase.RESTORING)
        epoch = self.master.newest.epoch if self.master.newest else 0
        self._lifeline.show(self._shown_stage(), epoch if known else None)
        if self._beating:
            return  # the store hangs: its heartbeats would only queue up
        self._beating = True
        begun_by = self._launch.id if self._begun or generation > 0 else ""
        heartbeat = LastHeartbeat(self._clock.wall_ms(), generation, phase.value, begun_by)

        def work() -> SupervisorSign | None:
            if self._replaced():
                raise Fenced(_FENCED.reason)
            if phase is not Phase.STANDBY:
                self._folder.write_heartbeat(heartbeat)
            return self._folder.read_supervisor()

        def done(sign: SupervisorSign | None, error: BaseException | None) -> None:
            self._beating = False
            if isinstance(error, Fenced) and self._end is None:
                self._end = _FENCED
            self._standby = sign.standby if sign is not None else None

        self._offload.submit(Queue.HEARTBEAT, work, done)

    def _shown_stage(self) -> Stage:
        if not self._stands_by:
            return Stage.DECIDING
        return Stage.STANDING_BY if self.master.slots.enough else Stage.WARMING

    def _replaced(self) -> bool:
        address = self._folder.read_address()
        later = address is not None and address.generation > self.master.attempt.generation > 0
        return later or not self._folder.belongs_to(self._launch)

    def _patience_s(self) -> float:
        return min(TICK_S, max(0.0, (self.master.wakeup_ms() - self._clock.now_ms()) / 1000))

    # --- arrivals, on any thread ---

    def _on_message(self, session: str, message: SlotMessage) -> None:
        now = self._clock.now_ms
        self._mailbox.put(lambda: self._carry_out(self.master.on_message(session, message, now())))

    def _on_gone(self, session: str, why: str) -> None:
        now = self._clock.now_ms
        self._mailbox.put(lambda: self._carry_out(self.master.on_slot_gone(session, why, now())))

    def _on_gate_answer(self, answer: GateAnswer) -> None:
        now = self._clock.now_ms
        self._mailbox.put(lambda: self._carry_out(self.master.on_gate_answer(answer, now())))

    def _on_slot_job_end(self, error: WeirError) -> None:
        if isinstance(error, SparkLost):
            self._on_spark_lost(str(error))
        else:
            self._raise(error)

    def _on_spark_lost(self, why: str) -> None:
        self._spark_lost(SparkLost(why))

    def _raise(self, error: WeirError) -> None:
        """Ends the deciding thread with this error, from any thread."""

        def work() -> None:
            raise error

        self._mailbox.put(work)

    def ask(self, question: Callable[[], Any]) -> Any:
        """Runs a question of HTTP on the deciding thread and waits for the answer.

        An error is the asker's: a question changes nothing, so the deciding thread goes on.
        """
        return self._answer(question, lambda error: None)

    def decide(self, command: Callable[[], Any]) -> Any:
        """Runs a command of HTTP on the deciding thread and waits for the answer.

        An error is the asker's too, and ends the deciding thread: the JobMaster may have decided half of something.
        """

        def give_up(error: Exception) -> None:
            raise error

        return self._answer(command, give_up)

    def _answer(self, work: Callable[[], Any], on_error: Callable[[Exception], None]) -> Any:
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(work())
            except Exception as error:
                answer.set_exception(error)
                on_error(error)

        self._mailbox.put(run)
        for _ in range(100):
            wait([answer], timeout=0.1)
            if answer.done():
                return answer.result()
            if self._end is not None:
                raise NoAnswer(f"the job has ended: {self._end.reason}")
        raise NoAnswer("the JobMaster did not answer in 10 s")

    # --- questions of HTTP, on the deciding thread ---

    def status(self) -> JobStatus:
        past = self.timeline.past
        wall_ms, now_ms = self._clock.wall_ms(), self._clock.now_ms()
        status = describe(self.master, past, self._launch.path, self._spark_ui, wall_ms, now_ms)
        sign = self._standby
        standby = StandbyStatus(sign.ready, sign.in_words()) if sign is not None else None
        died, why = self._deaths.total, self._deaths.reason
        return msgspec.structs.replace(status, jobmaster_deaths=died, last_death=why, standby=standby)

    def vertex(self, vertex_id: str) -> VertexStatus | None:
        if all(vertex.id != vertex_id for vertex in self.master.execution.graph.vertices):
            return None
        return describe_vertex(self.master, vertex_id, self._clock.wall_ms())

    def upgrade(self) -> UpgradeStatus | None:
        """Runs on a thread of HTTP, as it may write a file."""
        return last_upgrade(self._folder)

    def request_upgrade(self, asked: AskedUpgrade) -> str | Refusal:
        """Runs on a thread of HTTP, as it starts a process."""
        return self._start_upgrade(asked) if self._start_upgrade is not None else _ATTACHED

    def rehearsal(self) -> RehearsalStatus | None:
        """Runs on a thread of HTTP, as it may write a file."""
        return last_rehearsal(self._folder)

    def request_rehearsal(self, asked: AskedRehearsal) -> str | Refusal:
        """Runs on a thread of HTTP, as it starts a process."""
        return self._start_rehearsal(asked) if self._start_rehearsal is not None else _ATTACHED

    def look_up(self, uid: str, key: Sequence[str]) -> StateOfKey | None:
        """Runs on a thread of HTTP, as it reads the store."""
        newest = self.ask(lambda: self.master.newest)
        return look_up(EpochLog(self._store, self._paths), newest, uid, key) if newest is not None else None

    def trigger(self) -> int | None:
        checkpoint, actions = self.master.trigger_checkpoint(self._clock.now_ms())
        self._carry_out(actions)
        return checkpoint

    def collect(self, dry_run: bool) -> Collection:
        return collect(self._store, self._paths.job, dry_run=dry_run)

    def take_savepoint(self, request: SavepointRequest) -> int | Refusal:
        taken, actions = self.master.trigger_savepoint(request, self._clock.now_ms())
        self._carry_out(actions)
        return taken

    def stop_job(self, request: StopRequest) -> Refusal | None:
        refusal, actions = self.master.stop(request, self._clock.now_ms())
        self._carry_out(actions)
        return refusal

    def check_savepoint(self, request: SavepointRequest) -> None:
        """Raises an error if the savepoint exists or can't be written. Reads stores: not on the deciding thread."""
        check_new_savepoint(EpochLog(self._store, self._paths), request, open_place)

    def list_savepoints(self, known: list[SavepointRecord]) -> list[SavepointRecord]:
        """Compares what is known with what is there. Reads stores: not on the deciding thread."""
        return with_store(known, self._store, self._paths, open_place)

    def look_at_savepoint(self, known: SavepointRecord) -> SavepointRecord:
        """Compares one record with its place. Reads a store: not on the deciding thread."""
        return with_place(known, self._store, self._paths, open_place)

    def delete_savepoint(self, place: str) -> None:
        """Uses a store: not on the deciding thread."""
        delete_savepoint(self._launch.store, place)

    def gate(self) -> GateStatus:
        return GateStatus(self.master.held, self.master.verdicts)

    def rule(self, checkpoint: int, ruling: Ruling) -> Refusal | None:
        refusal, actions = self.master.rule(checkpoint, ruling, self._clock.now_ms())
        self._carry_out(actions)
        return refusal

    def rescale(self, wanted: Scaling) -> Answer:
        answer, actions = self.master.rescale(wanted, self._clock.now_ms())
        self._carry_out(actions)
        return answer

    def want_stopped(self) -> None:
        """Runs on a thread of HTTP, as it writes a file. If that fails, the job is not cancelled."""
        self._folder.want_stopped_here("http")

    def cancel(self) -> bool:
        """Cancels the job. Its bucket hears of it when the job has ended."""
        self.stop()
        return True

    def stop(self) -> None:
        """Cancels the job, from any thread."""
        self._mailbox.put(self._cancel)

    def _cancel(self) -> None:
        self._carry_out(self.master.cancel(self._clock.now_ms()))

    # --- carrying out ---

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(session, message):
                    self._control.send(session, message)
                case KillSlot(slot, why, silent, heard):
                    logger.warning("killing the slot in process %d: %s", slot.pid, why)
                    self._control.send(slot.session, EndProcess(why))  # its threads may still listen
                    job, task = self._slot_job, slot.task_attempt
                    kill = partial(job.kill_silent, task, why, heard) if silent else partial(job.kill, task, why)
                    # Off this thread: in a JVM that hangs, the call would wait for ever.
                    self._offload.submit(Queue.KILL, kill, _killed)
                case StartSlots(numbers):
                    self._slot_job.add(numbers)
                case ReleaseSlots(numbers):
                    self._slot_job.release(numbers)
                case RunOffLoop(name, work, done):
                    self._offload.submit(queue_of(name), work, self._bind(done))
                case AskGate(question):
                    assert self._gates is not None, "the process of the gates is started before the job is claimed"
                    self._gates.ask(question)
                case EndGate(why):
                    assert self._gates is not None
                    self._gates.end(why)
                case Note(event):
                    self._note(event)
                case Stop():
                    self._end = self._end or action

    def _bind(self, done: Callable[[Any, BaseException | None, float], list[Action]]) -> Callable[..., None]:
        def finished(result: Any, error: BaseException | None) -> None:
            self._carry_out(done(result, error, self._clock.now_ms()))

        return finished

    def _note(self, event: AnyEvent) -> None:
        generation = self.master.attempt.generation
        if not self._began:
            logger.info("standing by: %s %s", event.kind, _short(event))
            return
        if isinstance(event, events.Claimed) and self._last_seen is not None:
            event = msgspec.structs.replace(event, last_seen_ms=self._last_seen.at_ms, death=self._deaths.reason)
        event = stamped(event, self._clock.wall_ms(), generation)
        self.timeline.add(event)
        self.savepoints.add(event)
        logger.info("%s under generation %d %s", event.kind, generation, _short(event))
        self._on_event(event)
        self._offload.submit(Queue.HISTORY, lambda: self._history.append(event), _written)
        self._chores.noted(event)
        if isinstance(event, events.Claimed):
            assert self._rest is not None
            pid = os.getpid()
            self._folder.write_address(MasterAddress(self._rest.url, pid, generation, self._token, identity(pid)))


def _short(event: AnyEvent) -> dict[str, Any]:
    """Returns the fields of an event that fit on a line of the log."""
    left_out = ("at_ms", "generation", "ledger", "detail", "subtasks", "raised")
    return {name: value for name, value in msgspec.structs.asdict(event).items() if name not in left_out}


def _killed(_: None, error: BaseException | None) -> None:
    if error is not None:
        logger.warning("a slot could not be killed: %s", error)


def _written(_: None, error: BaseException | None) -> None:
    if error is not None:
        logger.warning("an event is missing in the job's history: %s", error)
