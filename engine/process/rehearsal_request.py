"""Rehearsals that are asked for over HTTP. They take minutes, so a detached process does it:

    python -m engine.process.rehearsal_request STORE JOB DESCRIPTOR

That process does what `weir upgrade --rehearse` does (`engine/process/asked.py`). The job's `RehearsalRequest` says how
far it has come, and keeps its verdict. DESCRIPTOR holds the lock of such rehearsals: there is one at a time of a job.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from engine.core.errors import StoreError, WeirError, raised_by
from engine.host.launch import MasterLaunch
from engine.host.rehearsal_request import AskedRehearsal, RehearsalPhase, RehearsalRequest, RehearsalStatus
from engine.host.run_folder import RunFolder
from engine.jobmaster.savepoints import Refusal
from engine.observe.client import JobClient
from engine.process import upgrading
from engine.process.asked import BY, client_of_process, in_words, limited, planned, start_asked
from engine.process.judging import Judge, find_judge
from engine.process.rehearsing import RehearsalFailed, check_store
from engine.protocol.failures import Raised


def request_rehearsal(launch: MasterLaunch, environ: Mapping[str, str], asked: AskedRehearsal) -> str | Refusal:
    """Starts the process of a rehearsal beside the job that this start runs, and returns the rehearsal's id."""
    check_store(launch.store)
    folder = RunFolder(launch.store, launch.name)

    def note() -> str:
        now_ms = time.time_ns() // 1_000_000
        status = RehearsalStatus(
            id=secrets.token_hex(4),
            old=launch.path,
            new=asked.to or launch.path,
            checkpoints=asked.checkpoints,
            by=BY,
            began_ms=now_ms,
            changed_ms=now_ms,
        )
        folder.write_rehearsal_request(RehearsalRequest(asked, status))
        return status.id

    busy = f"another rehearsal of job {launch.name!r} is under way: GET /rehearsal shows it"
    module = "engine.process.rehearsal_request"
    return start_asked(module, launch, environ, folder.rehearsal_lock, busy, note, folder.forget_rehearsal_request)


class Rehearsal:
    """Carries out a rehearsal, and writes down how far it is."""

    def __init__(self, client: JobClient, request: RehearsalRequest) -> None:
        self._client = client
        self._request = request

    def carry_out(self) -> None:
        try:
            with limited():
                launch, judge = self._checked()
        except Exception as error:
            self._ended(RehearsalPhase.REFUSED, error, raised_by(error))
            return
        try:
            judged = judge(self._client, launch, self._request.asked.checkpoints, self._say)
        except RehearsalFailed as error:
            self._ended(RehearsalPhase.FAILED, error, error.raised)
            return
        except Exception as error:
            refused = isinstance(error, WeirError) and not isinstance(error, StoreError)  # the version may have run
            self._ended(RehearsalPhase.REFUSED if refused else RehearsalPhase.COULD_NOT_RUN, error, None)
            return
        self._note(phase=RehearsalPhase(judged.word), doing="", result=judged.fields())
        self._print(judged.word)

    def _checked(self) -> tuple[MasterLaunch, Judge]:
        """Loads the new version. Raises an error if the plan refuses anything."""
        judge = find_judge()
        launch, plan = planned(self._client, self._request.asked)
        self._note(plan=plan)
        upgrading.check(plan, launch)
        self._note(phase=RehearsalPhase.REHEARSING)
        return launch, judge

    def _ended(self, phase: RehearsalPhase, error: Exception, raised: Raised | None) -> None:
        reason = in_words(error)
        self._note(phase=phase, doing="", reason=reason, raised=raised)
        self._print(f"{phase.value}: {reason}")

    def _say(self, text: str) -> None:
        self._note(doing=text)
        self._print(text)

    def _note(self, **fields: Any) -> None:
        self._request = self._request.changed(**fields)
        self._client.folder.write_rehearsal_request(self._request)

    def _print(self, text: str) -> None:
        print(f"rehearsal {self._request.status.id}: {text}", flush=True)


def main() -> None:
    client = client_of_process()
    request = client.folder.read_rehearsal_request()
    assert request is not None, "the JobMaster writes it before it starts this process"
    Rehearsal(client, request).carry_out()


if __name__ == "__main__":
    main()
