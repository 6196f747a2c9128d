"""Decides about the JobMasters of one job: whether one hangs, and when the next starts. Pure: callers pass the time."""

from __future__ import annotations

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

    def on_start(self) -> None:
        """A JobMaster process was started."""
        self._silence = Silence()
        self.stage = None

    def on_sign(self, stage: Stage, epoch: int | None) -> None:
        """A JobMaster gave a sign of life. An epoch that is new ends the row of deaths."""
        self._silence.heard()
        self.stage = stage
        if epoch is None:
            return
        if self._epoch is not None and epoch > self._epoch:
            self.in_a_row, self._back_off = 0, BACK_OFF
        self._epoch = epoch

    def hung_for_s(self, now_ms: float) -> float | None:
        """Returns for how long the JobMaster has been silent if that is too long."""
        silent_ms = self._silence.look(now_ms)
        stage = self.stage or Stage.LOADING
        patience_ms = self._silent_ms if stage is Stage.DECIDING else _PATIENCE_MS[stage]
        return silent_ms / 1000 if patience_ms is not None and silent_ms > patience_ms else None

    def on_death(self, death: Death, now_ms: float, jitter: float) -> float | None:
        """Returns the wait before the next JobMaster in ms, or None if the job ends."""
        self.deaths += 1
        self.in_a_row += 1
        if remedy(Where.JOBMASTER, death.fault) is Remedy.END:
            return None
        delay_ms, self._back_off = self._back_off.on_failure(now_ms, jitter, death.fault)
        return delay_ms
