"""Keeps a standby for a running job: a second JobMaster process with a Spark of its own, which waits.

Replaces a standby that dies or hangs, and hands it over when the JobMaster is gone. Invariant: whatever happens to a
standby, the job goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from engine.host.run_folder import StandbySign
from engine.process.child import MasterChild
from engine.protocol.failures import Fault
from engine.protocol.remedy import Death, Stage, death_of
from engine.protocol.supervision import StandbySupervision


class StartChild(Protocol):
    def __call__(self, *, standby: bool) -> MasterChild: ...


class StandbyKeeper:
    """`start` starts the process of a standby; `jitter` is in [0, 1)."""

    def __init__(self, start: StartChild, silent_s: float, jitter: Callable[[], float]) -> None:
        self._start = start
        self._jitter = jitter
        self._supervision = StandbySupervision(silent_s * 1000)
        self._child: MasterChild | None = None
        self._died = ""
        self._shown: Stage | None = None
        self._since_s = time.monotonic()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def stage(self) -> Stage | None:
        return self._supervision.stage

    def poll(self, jobmaster: Stage | None) -> None:
        """Starts a standby if it is time, and ends one that hangs. `jobmaster` is what the JobMaster does now."""
        child = self._child
        if child is None:
            if self._supervision.due(jobmaster, _now_ms()):
                self._start_one()
            return
        self._listen(child)
        hung_s = self._supervision.hung_for_s(_now_ms())
        if hung_s is not None or child.ended:
            code = self._finish(child)
            self._on_death(death_of(code, self._supervision.stage, child.words, hung_s))

    def take(self) -> MasterChild | None:
        """Hands over the standby, whatever it does: one that still starts is sooner ready than another."""
        child, self._child = self._child, None
        if child is None or not child.ended:
            return child
        self._finish(child)
        return None

    def on_takeover(self) -> None:
        self._supervision.on_takeover()
        self._died = ""

    def end(self) -> None:
        """Ends the standby. The job has ended, so there will be no other."""
        if self._child is not None:
            self._finish(self._child)

    def sign(self) -> StandbySign:
        """Returns what the standby does, for the supervisor's sign of life."""
        stage = (self._supervision.stage or Stage.LOADING) if self._child is not None else None
        if stage is not self._shown:
            self._shown, self._since_s = stage, time.monotonic()
        return StandbySign(stage, int(time.monotonic() - self._since_s), self._supervision.deaths, self._died)

    def _start_one(self) -> None:
        try:
            self._child = self._start(standby=True)
        except OSError as error:
            self._on_death(Death(Fault.OUTSIDE, f"its process could not be started: {error}"))
        else:
            self._supervision.on_start()

    def _listen(self, child: MasterChild) -> None:
        for sign in child.heard():
            self._supervision.on_sign(sign.stage)

    def _finish(self, child: MasterChild) -> int:
        code = child.end()
        self._listen(child)
        child.close()
        self._child = None
        return code

    def _on_death(self, death: Death) -> None:
        self._died = death.reason
        self._supervision.on_death(death, _now_ms(), self._jitter())


def _now_ms() -> float:
    return time.monotonic() * 1000
