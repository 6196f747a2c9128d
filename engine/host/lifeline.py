"""The lifeline: a pipe from a JobMaster process to its supervisor, for signs of life, last words and the job's outcome.

It needs neither the store nor the network, so a full disk or a slow store does not look like a hung JobMaster.
Invariant: neither end ever waits for the other. A sign that finds the pipe full is dropped.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from engine.host.run_folder import MasterExit
from engine.protocol.failures import Fault
from engine.protocol.remedy import Death, Stage

_VARIABLE = "WEIR_LIFELINE"
_WORDS_BYTES = 2000
"""A message of up to 4096 bytes goes into a pipe as a whole or not at all; JSON may double the length of plain text."""


class Sign(msgspec.Struct, frozen=True):
    """A sign of life. `epoch` is the newest one, once the JobMaster knows it. `ended`: how the job ended."""

    stage: Stage
    epoch: int | None = None
    words: Death | None = None
    ended: MasterExit | None = None


class Lifeline:
    """The JobMaster's end. Without a descriptor nobody listens, as in a job inside of a script."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self.stage = Stage.LOADING
        self.broken = False
        """True once a sign of life found that the supervisor is gone."""

    @classmethod
    def inherited(cls) -> Lifeline:
        """Takes over the end that the supervisor left open for this process, and for none of its children."""
        number = os.environ.pop(_VARIABLE, None)
        if number is None:
            return cls()
        descriptor = int(number)
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        return cls(descriptor)

    def show(self, stage: Stage, epoch: int | None = None) -> None:
        self.stage = stage
        self._write(Sign(stage, epoch))

    def last_words(self, fault: Fault, reason: str) -> None:
        """Tells the supervisor why this process ends without an outcome."""
        self._write(Sign(self.stage, words=Death(fault, _short(reason))))

    def tell_end(self, end: MasterExit) -> None:
        """Tells the supervisor how the job ended, before that is written: on a full disk it can't be."""
        self._write(Sign(self.stage, ended=MasterExit(end.outcome, _short(end.reason))))

    def _write(self, sign: Sign) -> None:
        if self._descriptor is not None:
            try:
                os.write(self._descriptor, msgspec.json.encode(sign) + b"\n")
            except BrokenPipeError:
                self.broken = True
            except OSError:  # the pipe is full
                pass


def _short(reason: str) -> str:
    # In JSON a control character takes six bytes, and half of a surrogate pair is an error.
    plain = "".join(c if c.isprintable() or c == "\n" else " " for c in reason)
    return plain.encode()[:_WORDS_BYTES].decode(errors="ignore")


class Listener:
    """The supervisor's end. `environ` and `descriptor` go to the process that is started."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        os.set_blocking(self._read, False)
        self._begun = b""

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, _VARIABLE: str(self.descriptor)}

    def started(self) -> None:
        """Closes this process's copy of the other end."""
        os.close(self.descriptor)

    def heard(self) -> list[Sign]:
        """Returns the signs since the last call."""
        signs: list[Sign] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._read, 65536):
                *lines, self._begun = (self._begun + data).split(b"\n")
                signs += [msgspec.json.decode(line, type=Sign) for line in lines]
        return signs

    def close(self) -> None:
        os.close(self._read)
