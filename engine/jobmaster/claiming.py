"""`Claiming` asks the epoch log for the job, until this JobMaster owns it: the phase FENCING.

Invariants: one question at a time; a store that does not answer is asked less and less often, and for ever; an error
that no other JobMaster could do better with ends the job.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.core.errors import StoreError, fault_of
from engine.jobmaster import events
from engine.jobmaster.actions import Action, Note
from engine.jobmaster.publisher import Publisher
from engine.protocol.epoch_records import Claimed
from engine.protocol.remedy import Remedy, Where, remedy
from engine.protocol.restart import ExponentialDelay, RestartStrategy

CLAIM_WAIT_MS = 10_000.0


class Claiming:
    """`claimed` takes the claim and returns what follows; `end_job` ends the job for a reason."""

    def __init__(
        self,
        publisher: Publisher,
        owner: str,
        retry_ms: float,
        jitter: Callable[[], float],
        claimed: Callable[[Claimed, float], list[Action]],
        end_job: Callable[[str], list[Action]],
    ) -> None:
        self._publisher = publisher
        self._owner = owner
        self._retry_ms = retry_ms
        self._jitter = jitter
        self._claimed = claimed
        self._end_job = end_job
        self._asking = False
        self._ask_at_ms = 0.0
        self._retries: RestartStrategy = ExponentialDelay(retry_ms, max_ms=CLAIM_WAIT_MS, multiplier=2)

    def on_tick(self, now_ms: float) -> list[Action]:
        """Asks, unless an answer is still to come, or the wait after the last one is not over."""
        if self._asking or now_ms < self._ask_at_ms:
            return []
        self._asking = True
        return [self._publisher.claim(self._owner, self._answered)]

    def _answered(self, claimed: Claimed | None, error: BaseException | None, now_ms: float) -> list[Action]:
        self._asking = False
        if error is not None:
            return self._failed(error, now_ms)
        if claimed is None:
            self._ask_at_ms = now_ms + self._retry_ms
            return [Note(events.ClaimLost())]
        return self._claimed(claimed, now_ms)

    def _failed(self, error: BaseException, now_ms: float) -> list[Action]:
        if remedy(Where.JOBMASTER, fault_of(error)) is Remedy.END:
            return self._end_job(str(error))
        if not isinstance(error, StoreError):
            raise error  # another JobMaster may do better
        delay_ms, self._retries = self._retries.on_failure(now_ms, self._jitter(), fault_of(error))
        self._ask_at_ms = now_ms + (delay_ms or 0.0)
        return [Note(events.ClaimFailed(str(error)))]
