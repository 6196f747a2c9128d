"""The logs of a job, `<store>/<job>/run/logs/`: one log of each slot and one of the JobMaster, rotated.

A line has four columns, separated by tabs: time (UTC), name of the log, operator and subtask if known, text. Invariant:
a log that can't be written loses lines, and the job goes on.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from engine.host.rotated import BEGIN, Position, RotatedFile
from engine.runtime.running import RUNNING

FILE_BYTES = 10 << 20
FILES = 3
WAITING_LINES = 1000
"""The number of lines that a slot keeps until it knows its name."""

MASTER = "master"


def slot_name(index: int | str) -> str:
    return f"slot-{index}"


class LogWriter:
    """Writes lines from any thread. Lines wait until the log has a name: a slot gets its name with its deployment."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, str, str]] = deque(maxlen=WAITING_LINES)
        self._name: str | None = None
        self._file: RotatedFile | None = None
        if name is not None:
            self.rename(name)

    def rename(self, name: str) -> None:
        with self._lock:
            if name == self._name:
                return
            if self._file is not None:
                self._file.close()
            self._name, self._file = name, _file(self._folder, name)
            while self._waiting:
                self._append(*self._waiting.popleft())

    def write(self, text: str, operator: str | None = None) -> None:
        """Writes lines of an operator: of the one that runs now, if none is named."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if operator is None:
            running = RUNNING.get()
            operator = f"{running.uid}[{running.subtask.index}]" if running else "-"
        with self._lock:
            for line in text.splitlines() or [""]:
                if self._file is None:
                    self._waiting.append((now, operator, line))
                else:
                    self._append(now, operator, line)

    def _append(self, now: str, operator: str, line: str) -> None:
        assert self._file is not None
        with contextlib.suppress(OSError):
            self._file.append("\t".join((now, str(self._name), operator, line)).encode(errors="replace"))


@contextlib.contextmanager
def capturing(log: LogWriter) -> Iterator[None]:
    """Copies what this process prints, logs and warns of into the log; stops at the end, as Spark may reuse it."""
    out, err, root = sys.stdout, sys.stderr, logging.getLogger()
    handler, level = LogHandler(log, shown=err), root.level
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    logging.captureWarnings(True)
    sys.stdout, sys.stderr = _Tee(out, log.write), _Tee(err, log.write)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        logging.captureWarnings(False)
        root.setLevel(level)
        root.removeHandler(handler)


class LogHandler(logging.Handler):
    """Writes log records into the log. Also prints warnings and errors to `shown`, as Python does without a handler."""

    def __init__(self, log: LogWriter, shown: TextIO | None = None) -> None:
        super().__init__()
        self._log = log
        self._shown = shown
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        self._log.write(text)
        if self._shown is not None and record.levelno >= logging.WARNING:
            print(text, file=self._shown, flush=True)


class _Tee(io.TextIOBase):
    """A standard stream that also copies whole lines into the log."""

    def __init__(self, stream: TextIO, write: Callable[[str], None]) -> None:
        self._stream = stream
        self._write = write
        self._begun = threading.local()  # print() writes a line in pieces; those of two threads must not mix

    def write(self, text: str) -> int:
        self._stream.write(text)
        *lines, self._begun.line = (getattr(self._begun, "line", "") + text).split("\n")
        for line in lines:
            self._write(line)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def __getattr__(self, name: str) -> Any:
        """Passes `buffer` and the like on to the stream. Text that is written there is missing in the log."""
        return getattr(self._stream, name)


@dataclass(frozen=True)
class LogLine:
    """A line of a log. `level` is that of `logging`; what was printed has INFO."""

    at: str
    name: str
    operator: str
    text: str
    level: int

    @property
    def uid(self) -> str:
        return self.operator.rpartition("[")[0]


class LogReader:
    """Reads all logs of a job as one, in the order of time. Each `read` goes on where the last one ended.

    It leaves out what belongs to another slot or operator, or is below `level`.
    """

    def __init__(
        self, folder: Path, slot: int | None = None, operator: str | None = None, level: int = logging.NOTSET
    ) -> None:
        self._folder = folder
        self._slot = slot
        self._operator = operator
        self._level = level
        self._positions: dict[str, Position] = {}
        self.operators: set[str] = set()

    def skip(self) -> None:
        """Skips the lines that are there already."""
        self._positions = {name: _file(self._folder, name).end() for name in self._names()}

    def read(self) -> Iterator[LogLine]:
        for line in heapq.merge(*(self._lines(name) for name in self._names()), key=lambda line: line.at):
            self.operators.add(line.uid)
            if self._operator in (None, line.uid) and line.level >= self._level:
                yield line

    def slots(self) -> list[int]:
        """Returns the slots that have written anything."""
        names = (path.name.removesuffix(".log") for path in self._folder.glob(f"{slot_name('*')}.log"))
        return sorted(int(name.rpartition("-")[2]) for name in names)

    def _names(self) -> list[str]:
        wanted = "*" if self._slot is None else slot_name(self._slot)
        return sorted(path.name.removesuffix(".log") for path in self._folder.glob(f"{wanted}.log"))

    def _lines(self, name: str) -> Iterator[LogLine]:
        before: LogLine | None = None
        for line, position in _file(self._folder, name).after(self._positions.get(name, BEGIN)):
            self._positions[name] = position
            parts = line.decode(errors="replace").split("\t", 3)
            if len(parts) == 4:  # otherwise a crash cut the line short
                at, log, operator, text = parts
                before = LogLine(at, log, operator, text, _level(at, operator, text, before))
                yield before


_LEVELLED = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: ")


def _level(at: str, operator: str, text: str, before: LogLine | None) -> int:
    """Returns the level of a line. All lines of a record, such as its traceback, have the same time and operator."""
    if found := _LEVELLED.match(text):
        return logging.getLevelNamesMapping()[found[1]]
    if before is not None and (before.at, before.operator) == (at, operator):
        return before.level
    return logging.INFO


def _file(folder: Path, name: str) -> RotatedFile:
    return RotatedFile(folder / f"{name}.log", FILE_BYTES, FILES)
