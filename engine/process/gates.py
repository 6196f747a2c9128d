"""`GateProcess` keeps the process of a job's gates warm and brings its answers to the JobMaster.

Invariants: no call waits for the process. A question whose process ends is answered with an error, and another process
is started. A question about a sink takes the place of an older one about it, which nobody waits for any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec

from engine.connectors.table import TableSink
from engine.core.gates import JUDGE, Gate
from engine.core.sinks import Sink
from engine.process.gate_child import GateSetup
from engine.protocol.gate import GateAnswer, GateQuestion

logger = logging.getLogger("weir.gates")


def setup_of(sinks: Sequence[tuple[str, Sink]], home: str) -> GateSetup | None:
    """Returns what the process of the gates has to know; None if no sink has a gate. `home`: the job's store."""
    gates: Mapping[str, Gate] = {uid: sink.gate for uid, sink in sinks if sink.gate is not None}
    stores = {uid: sink.address(home) for uid, sink in sinks if uid in gates and isinstance(sink, TableSink)}
    judges = sorted({gate.asks for gate in gates.values() if gate.kind == JUDGE})
    return GateSetup(stores, judges) if gates else None


class GateProcess:
    """`deliver` takes an answer, on the thread of this object. `module_path`: where judges are imported from."""

    def __init__(self, setup: GateSetup, module_path: Sequence[str], deliver: Callable[[GateAnswer], None]) -> None:
        self._setup = setup
        self._module_path = list(module_path)
        self._deliver = deliver
        self._questions: queue.SimpleQueue[GateQuestion | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._newest: dict[str, int] = {}
        self._asking: GateQuestion | None = None
        self._ended: GateQuestion | None = None  # it was asked when the process was ended, and is asked of no other one
        self._closed = False
        threading.Thread(target=self._work, name="gates", daemon=True).start()

    def ask(self, question: GateQuestion) -> None:
        with self._lock:
            self._newest[question.sink] = question.number
            if self._child is not None and self._asking is not None and self._asking.sink == question.sink:
                self._end_child()  # an attempt that failed has left its question behind: it may hang for ever
        self._questions.put(question)

    def end(self, why: str) -> None:
        """Ends the process, which hangs or is too slow. A question that it works on is answered with an error."""
        logger.warning("ending the process of the gates: %s", why)
        self._kill()

    def close(self) -> None:
        """Ends the process for good."""
        with self._lock:
            self._closed = True
        self._questions.put(None)
        self._kill()

    @property
    def pid(self) -> int | None:
        """The process that answers now; None between two."""
        child = self._child
        return child.pid if child is not None else None

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            self._running()
        while (question := self._questions.get()) is not None:
            with self._lock:
                if self._newest[question.sink] != question.number:
                    continue
                self._asking = question
            try:
                found = self._asked(question)
            except (OSError, msgspec.DecodeError) as error:
                found = GateAnswer(question.number, error=f"{type(error).__name__}: {error}")
            with self._lock:
                self._asking = None
            self._deliver(found)
            if found.error:
                with contextlib.suppress(OSError):  # warm before it is asked again: imports may take most of its time
                    self._running()
        if self._child is not None:
            self._child.wait()

    def _asked(self, question: GateQuestion) -> GateAnswer:
        child = self._running()
        with self._lock:
            if self._ended is question:
                return GateAnswer(question.number, error="the process of the gates was ended")
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(msgspec.json.encode(question) + b"\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line.endswith(b"\n"):
            return GateAnswer(question.number, error=f"the process of the gates ended with code {child.wait()}")
        return msgspec.json.decode(line, type=GateAnswer)

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise OSError("the JobMaster is ending")
            if self._child is None or self._child.poll() is not None:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "engine.process.gate_child", msgspec.json.encode(self._setup).decode()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, self._module_path))},
                )
            return self._child

    def _kill(self) -> None:
        with self._lock:
            if self._child is not None:
                self._end_child()

    def _end_child(self) -> None:
        """Kills the process: the thread that waits for its answer reads the end of it."""
        assert self._child is not None
        self._ended = self._asking
        self._child.kill()
