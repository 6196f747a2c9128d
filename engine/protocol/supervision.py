"""Decides about the JobMasters of one job: whether one hangs, when the next starts, and when a standby takes over.

Pure: callers pass the time.
"""

from __future__ import annotations

from engine.protocol.failures import Fault
from engine.protocol.remedy import Death, Remedy, Stage, Where, remedy
from engine.protocol.restart import ExponentialDelay, RestartStrategy

LOOK_MS = 1000.0
BACK_OFF = ExponentialDelay(initial_ms=250, max_ms=60_000, multiplier=2, jitter_factor=0.25)
"""The first replacement starts nearly at once; later ones wait longer, up to a minute."""

_PATIENCE_MS = {
    Stage.LOADING: 300_000.0,
    Stage.STARTING: 300_000.0,
    Stage.PREPARING: None,  # Spark may take hours to write a DataFrame; a Spark that hangs is noticed by its watch
    Stage.ENDING: 120_000.0,
}
_DECIDING_THREAD_RUNS = (Stage.WARMING, Stage.STANDING_BY, Stage.DECIDING)


class Silence:
    """Measures for how long nothing was heard. Somebody who looks calls `look` at least once in `look_ms`.

    One look adds `look_ms` at most: a process that slept itself has not listened meanwhile, and blames nobody.
    """

    def __init__(self, look_ms: float = LOOK_MS) -> None:
        self._look_ms = look_ms
        self._looked_ms: float | None = None
        self.length_ms = 0.0

    def heard(self) -> None:
        self.length_ms = 0.0

    def look(self, now_ms: float) -> float:
        """Returns the length of the silence so far."""
        if self._looked_ms is not None:
            self.length_ms += min(self._look_ms, now_ms - self._looked_ms)
        self._looked_ms = now_ms
        return self.length_ms


class Supervision:
    """`silent_ms`: a JobMaster whose deciding thread gave no sign of life for this long hangs."""

    def __init__(self, silent_ms: float) -> None:
        self._silent_ms = silent_ms
        self._silence = Silence()
        self._back_off: RestartStrategy = BACK_OFF
        self._epoch: int | None = None
        self.stage: Stage | None = None
        self.deaths = 0
        self.in_a_row = 0
        """Deaths without an epoch in between."""

    def on_start(self, stage: Stage | None = None) -> None:
        """A JobMaster process was started, or a standby that is at this stage has been told to take over."""
        self._silence = Silence()
        self.stage = stage

    def on_sign(self, stage: Stage, epoch: int | None) -> None:
        """A JobMaster gave a sign of life. An epoch that is new ends the row of deaths."""
        self._silence.heard()
        self.stage = stage
        if epoch is None:
            return
        if self._epoch is not None and epoch > self._epoch:
            self.forget_deaths()
        self._epoch = epoch

    def forget_deaths(self) -> None:
        """Ends the row of deaths: the next death is the first of a row."""
        self.in_a_row, self._back_off = 0, BACK_OFF

    def hung_for_s(self, now_ms: float) -> float | None:
        """Returns for how long the JobMaster has been silent if that is too long."""
        silent_ms = self._silence.look(now_ms)
        stage = self.stage or Stage.LOADING
        patience_ms = self._silent_ms if stage in _DECIDING_THREAD_RUNS else _PATIENCE_MS[stage]
        return silent_ms / 1000 if patience_ms is not None and silent_ms > patience_ms else None

    def on_death(self, death: Death, now_ms: float, jitter: float, *, standby: bool = False) -> float | None:
        """Returns the wait before the next JobMaster in ms, or None if the job ends.

        A `standby` takes over at once. After a second death without an epoch it waits, too: what kills JobMasters as
        soon as they run would otherwise do so all the time.
        """
        self.deaths += 1
        self.in_a_row += 1
        if remedy(Where.JOBMASTER, death.fault) is Remedy.END:
            return None
        delay_ms, self._back_off = self._back_off.on_failure(now_ms, jitter, death.fault)
        return 0.0 if standby and self.in_a_row == 1 else delay_ms


class StandbySupervision:
    """Decides about the standby of a job: when the next one starts, and whether it hangs.

    Invariant: whatever happens to a standby, the job goes on. A standby whose code does not build any more is tried
    again, too: the running JobMaster has the code that it was started with.
    """

    def __init__(self, silent_ms: float) -> None:
        self._process = Supervision(silent_ms)
        self._not_before_ms = 0.0

    @property
    def stage(self) -> Stage | None:
        return self._process.stage

    @property
    def deaths(self) -> int:
        """Standbys that died since one was last ready, or took over."""
        return self._process.in_a_row

    def due(self, jobmaster: Stage | None, now_ms: float) -> bool:
        """Says whether a standby is to be started. Waits until the job runs: two starts at once take twice as long."""
        return jobmaster is Stage.DECIDING and now_ms >= self._not_before_ms

    def on_start(self) -> None:
        self._process.on_start()

    def on_sign(self, stage: Stage) -> None:
        self._process.on_sign(stage, None)
        if stage is Stage.STANDING_BY:
            self._process.forget_deaths()

    def hung_for_s(self, now_ms: float) -> float | None:
        return self._process.hung_for_s(now_ms)

    def on_death(self, death: Death, now_ms: float, jitter: float) -> None:
        delay_ms = self._process.on_death(Death(Fault.OUTSIDE, death.reason), now_ms, jitter)
        assert delay_ms is not None, "no death of a standby ends a job"
        self._not_before_ms = now_ms + delay_ms

    def on_takeover(self) -> None:
        """The standby is the JobMaster now. The next one may be started as soon as the job runs."""
        self._process.on_start()
        self._process.forget_deaths()
        self._not_before_ms = 0.0
