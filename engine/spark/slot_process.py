"""A slot: one long-running Spark task. It registers with the JobMaster, is deployed to, and runs subtasks. It ends when
the JobMaster says so, or when it has lost the JobMaster.

The thread of the Spark task is the task thread. Heartbeats have a thread of their own: the JobMaster goes on hearing
from a slot in a long step, and hears nothing from a stopped process.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from engine.core.errors import StoreError, fault_of, raised_by
from engine.core.paths import JobPaths
from engine.core.ports import Store
from engine.graph.scalable import ScalableJob, SlotPlans
from engine.host.descriptors import raise_descriptor_limit
from engine.host.mailbox import Mailbox
from engine.host.run_folder import RunFolder
from engine.host.system import QueueOffload, SystemClock
from engine.network.control import ControlClient
from engine.network.places import place_towards
from engine.network.transport import FlightTransport
from engine.observe.logs import LogWriter, capturing, slot_name
from engine.protocol.messages import (
    Deploy,
    EndProcess,
    Heartbeat,
    LongStep,
    MasterMessage,
    NotBuilt,
    OverBudget,
    Register,
    SlotMessage,
    TaskFailed,
)
from engine.protocol.scaling import AS_STARTED, Scaling
from engine.runtime.running import RUNNING
from engine.runtime.slot import SlotRuntime
from engine.runtime.steps import StepWatch
from engine.store.opening import open_store

HEARTBEAT_S = 0.25
LAST_WORDS_S = 1.0
IDLE_WAIT_S = 0.05
MESSAGES_PER_STEP = 256
LONG_STEP_MS = 1000.0
STACK_FRAMES = 15


@dataclass(frozen=True)
class SlotLaunch:
    """The values that the JobMaster gives every slot, inside Spark's task closure.

    `build` returns the job: loaded by its import path, or one that was made in a notebook and travels along. `scaling`
    is that at which the JobMaster was started.
    The slot ends itself after `lease_s` without its JobMaster. A channel whose peer is silent for `silence_s` is
    broken. `module_path` is appended to the slot's module search path.
    """

    name: str
    build: Callable[[], ScalableJob]
    store: str
    nonce_path: str
    jobmaster_address: str
    token: str
    lease_s: float
    silence_s: float
    module_path: tuple[str, ...]
    memory_bytes: int | None = None
    scaling: Scaling = AS_STARTED


def run_slot(launch: SlotLaunch, task_attempt: int, partition: int) -> None:
    """Runs a slot until the JobMaster shuts it down. Any other end is that of the process, and Spark starts another."""
    raise_descriptor_limit()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)  # records come and go by the million, and hardly ever form cycles
    sys.setswitchinterval(0.0005)  # an I/O thread that wakes gets the interpreter soon
    os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "ignore")  # batches come from the network unaligned
    pa.set_cpu_count(1)  # a slot has one task thread; kernels that spread over all cores would fight over them
    for entry in launch.module_path:
        if entry not in sys.path:
            sys.path.append(entry)
    log_writer = LogWriter(RunFolder(launch.store, launch.name).logs)
    with capturing(log_writer):
        _Slot(launch, task_attempt, partition, log_writer).run()


class _Slot:
    def __init__(self, launch: SlotLaunch, task_attempt: int, partition: int, log_writer: LogWriter) -> None:
        self._lease_s = launch.lease_s
        self._memory_bytes = launch.memory_bytes
        self._task_thread = threading.get_ident()
        self._task_context = contextvars.copy_context()
        self._steps = 0
        self._ended = threading.Event()
        self._log_writer = log_writer
        self._clock = SystemClock()
        self._mailbox: Mailbox[Callable[[], None]] = Mailbox()
        put = self._mailbox.put
        self._offload = QueueOffload(put, threads=4)
        store = open_store(launch.store)
        nonce, unseen = _nonce(store, launch.nonce_path)
        session = uuid.uuid4().hex
        self._control = ControlClient(
            launch.name, session, launch.jobmaster_address, launch.token, self._on_message, self._on_lost
        )
        job, fingerprint = self._build(launch, task_attempt, partition)
        transport = FlightTransport(
            launch.name,
            place_towards(launch.jobmaster_address),
            launch.token,
            lambda *frame: put(lambda: self._runtime.on_frame(*frame)),
            lambda *grant: put(lambda: self._runtime.on_grant(*grant)),
            lambda *broken: put(lambda: self._runtime.on_channel_broken(*broken)),
            launch.silence_s,
        )
        self._runtime = SlotRuntime(
            SlotPlans(job),
            JobPaths(launch.name),
            self._clock,
            transport,
            self._offload,
            store,
            self,
        )
        pid, plan = os.getpid(), fingerprint
        self._heard_s = time.monotonic()  # the lease begins with the registration: building may take longer than it
        self._control.send(Register(session, transport.address, pid, task_attempt, nonce, plan, partition, unseen))

    def _build(self, launch: SlotLaunch, task_attempt: int, partition: int) -> tuple[ScalableJob, str]:
        """Returns the job, and the fingerprint of its graph as launched.

        If that fails, the JobMaster hears why; Spark alone would try again without a word.

        The slot then waits until the JobMaster ends it, so that Spark does not start one after the other.
        """
        try:
            job = launch.build()
            return job, job.at(launch.scaling).fingerprint
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._control.send(NotBuilt(os.getpid(), task_attempt, partition, text, fault_of(error), raised_by(error)))
            time.sleep(self._lease_s)
            self._ended.set()
            self._control.close()
            raise

    def send(self, message: SlotMessage) -> None:
        """Sends a message of the runtime; writes a failure of the job's own code to the log of its operator, too."""
        if isinstance(message, TaskFailed) and message.raised is not None:
            operator = f"{message.uid}[{message.subtask.index if message.subtask else '-'}]"
            self._log_writer.write(f"ERROR {message.error}\n{message.raised.traceback}".rstrip(), operator)
        self._control.send(message)

    def run(self) -> None:
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        try:
            self._task_context.run(self._loop)
        finally:
            self._ended.set()
            self._control.close()

    def _loop(self) -> None:
        runtime, mailbox = self._runtime, self._mailbox
        idle = False
        while runtime.shutdown is None:
            work, done = mailbox.take(self._patience_s() if idle else 0.0), 0
            while work is not None:
                self._steps += 1
                work()
                done += 1
                work = mailbox.take() if done < MESSAGES_PER_STEP else None
            self._steps += 1
            idle = not runtime.step()

    def _patience_s(self) -> float:
        wakeup = self._runtime.wakeup_ms()
        if wakeup is None:
            return IDLE_WAIT_S
        return min(IDLE_WAIT_S, max(0.0, (wakeup - self._clock.now_ms()) / 1000))

    def _on_message(self, message: MasterMessage) -> None:
        self._heard_s = time.monotonic()
        if isinstance(message, EndProcess):
            end_process(f"the JobMaster wants it to: {message.reason}")
        if isinstance(message, Deploy):
            self._log_writer.rename(slot_name(message.slot))
        self._mailbox.put(lambda: self._runtime.on_control(message))

    def _on_lost(self, why: str) -> None:
        """Ends the process: without its JobMaster nothing that this slot does can ever be published."""
        if not self._ended.wait(0.5):  # the task thread may not have handled a shutdown yet
            end_process(f"lost the JobMaster: {why}")

    def _beat(self) -> None:
        """Keeps the lease. A slot without this thread would outlive its job, so it ends with the thread."""
        try:
            watch = StepWatch(self._clock.now_ms())
            while not self._ended.wait(HEARTBEAT_S):
                if time.monotonic() - self._heard_s > self._lease_s:
                    end_process(f"heard nothing from the JobMaster for {self._lease_s:.0f} s")
                step_ms = watch.look((self._steps, self._runtime.records_done()), self._clock.now_ms())
                self._control.send(Heartbeat(self._runtime.totals(), self._long_step(step_ms), self._long_io()))
                self._check_memory()
        except BaseException as error:
            if not self._ended.is_set():
                end_process(f"its heartbeat thread failed: {error!r}")
            raise

    def _long_step(self, step_ms: float) -> LongStep | None:
        """Describes where the task thread is, if it has been there for long."""
        if step_ms < LONG_STEP_MS:
            return None
        running = self._task_context.get(RUNNING)
        uid, subtask = (running.uid, str(running.subtask)) if running else ("", "")
        return LongStep(step_ms, uid, subtask, _stack(self._task_thread))

    def _long_io(self) -> LongStep | None:
        """Describes the oldest work on the I/O threads, if it has been under way for long."""
        oldest = self._offload.oldest()
        if oldest is None or (for_ms := self._clock.now_ms() - oldest.since_ms) < LONG_STEP_MS:
            return None
        return LongStep(for_ms, "", oldest.queue, _stack(oldest.thread))

    def _check_memory(self) -> None:
        used, budget = resident_bytes(), self._memory_bytes
        if budget is not None and used > budget:
            self._control.send(OverBudget(used, budget))
            self._ended.wait(HEARTBEAT_S)  # leaves time to send the message
            end_process(f"holds {used / 1e6:.0f} MB and may hold {budget / 1e6:.0f}")


def _nonce(store: Store, path: str) -> tuple[str, str]:
    """Returns the nonce of the JobMaster; or none, and why: the JobMaster then refuses this slot."""
    try:
        return store.read(path).decode(), ""
    except (OSError, StoreError) as error:
        return "", f"{type(error).__name__}: {error}"


def _stack(thread: int) -> str:
    """Returns the last frames of a thread; nothing if it has ended."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)[-STACK_FRAMES:]) if frame is not None else ""


def resident_bytes() -> int:
    """Returns the memory that this process holds, or 0 if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def end_process(why: str) -> None:
    """Ends the process at once, even if the task thread hangs or a stream can't be closed.

    Its last words get a thread and a moment: the reader of standard error may be dead, or may not read.
    """
    try:
        words = threading.Thread(target=_say_last, args=(why,), daemon=True)
        words.start()
        words.join(LAST_WORDS_S)
    finally:
        os._exit(1)


def _say_last(why: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"weir slot {os.getpid()} ends itself: {why}", file=sys.stderr, flush=True)
