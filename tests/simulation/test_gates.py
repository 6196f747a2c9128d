"""200 simulated runs in which every table has a gate, each from one seed, and bugs that they must notice.

Topology: jobs of test_simulation.py whose rows are single records. Faults: all of those, and gates that answer late,
twice, never or with an error, and people who decide too late. Checks: everything in tests/simulation/invariants.py and
tests/simulation/gates.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.connectors.table.dead_letters import DeadLetterCommitter
from engine.core.sinks import Withheld
from engine.jobmaster.actions import Action
from engine.jobmaster.gatekeeper import Gatekeeper, Ruled
from engine.jobmaster.publisher import Publisher
from engine.protocol import ledger
from engine.protocol.gate import Decision, GateAnswer, Ruling
from engine.protocol.manifest import Manifest
from tests.simulation.gates import run_gated
from tests.simulation.planting import Patches, check_that_a_bug_is_caught

SEEDS = 200
CHUNK = 50

ALWAYS = (
    "gate: passed",
    "gate: released",
    "gate: discarded",
    "gate: dead_letter",
    "gate: stops the job",
    "gate: answers late",
    "gate: answers twice",
    "gate: never answers",
    "gate: fails",
    "gate: its process is ended",
    "person: retry",
    "person: comes too late",
    "note: gate_answer_ignored",
)


@pytest.mark.promise("H5")
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_a_gate_refuses_is_never_visible_and_nothing_is_lost_or_doubled(first: int) -> None:
    hits: set[str] = set()
    for seed in range(first, first + CHUNK):
        result = run_gated(seed)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        hits |= result.hits
    assert set(ALWAYS) <= hits, set(ALWAYS) - hits


# --- planted bugs ---


def _late_answers_count() -> Patches:
    """Any answer is taken for that to the open question."""
    on_answer = Gatekeeper.on_answer

    def gullible(self: Gatekeeper, answer: GateAnswer, now_ms: float) -> list[Action]:
        case = next((case for case in self._cases if case.waits and case.number is not None), None)
        if case is not None:
            answer = msgspec.structs.replace(answer, number=case.number, rows=case.rows)
        return on_answer(self, answer, now_ms)

    return [(Gatekeeper, "on_answer", gullible)]


def _silence_is_consent() -> Patches:
    """A gate that says nothing in time lets the epoch pass, whatever its policy says."""
    return [(Gatekeeper, "_timed_out", lambda self, case, now_ms: self._decide(case, Decision.PASSED, now_ms))]


def _waits_for_ever() -> Patches:
    """Nobody looks at the time: a gate that never answers holds up the job for good."""
    return [(Gatekeeper, "on_tick", lambda self, now_ms: [])]


def _outlives_its_attempt() -> Patches:
    """A checkpoint that is judged when its attempt fails is published later, behind the next attempt's restore."""

    def forgetful(self: Publisher) -> list[Any]:
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    return [(Publisher, "drop_waiting", forgetful)]


def _publishes_what_is_discarded() -> Patches:
    withheld = Publisher._rows_withheld

    def all_the_same(self: Publisher, found: Any, error: Any, now_ms: float) -> list[Action]:
        commits = self._open.manifest.commits
        actions = withheld(self, found, error, now_ms)
        if self._publication is not None:
            manifest = msgspec.structs.replace(self._publication.manifest, commits=commits)
            self._publication.manifest = manifest
            return [self._write_off_loop(manifest)]
        return actions

    return [(Publisher, "_rows_withheld", all_the_same)]


def _discarded_rows_come_back() -> Patches:
    """What an epoch left out is not carried, so that the next one takes it for new."""
    published = Publisher._published

    def forgetful(self: Publisher, publication: Any, record: Any, now_ms: float) -> list[Action]:
        actions = published(self, publication, record, now_ms)
        if publication.withheld:
            self._carried = publication.manifest.commits
        return actions

    return [(Publisher, "_published", forgetful)]


def _dead_letters_stay_in_the_ledger() -> Patches:
    return [(ledger, "withheld", lambda uid, rows, digest: {ledger.withheld_rows(uid): rows})]


def _ledger_forgets_what_was_withheld_before() -> Patches:
    """Only the epoch itself is told of its withheld rows: the next one counts them among the published ones again."""
    published = Publisher._published

    def forgetful(self: Publisher, publication: Any, record: Any, now_ms: float) -> list[Action]:
        actions = published(self, publication, record, now_ms)
        self._withheld = {}
        return actions

    return [(Publisher, "_published", forgetful)]


def _split_drops_the_good_rows() -> Patches:
    withhold = DeadLetterCommitter.withhold

    def lossy(self: DeadLetterCommitter, committables: Any, refused: Any) -> Withheld:
        found = withhold(self, committables, refused)
        kept = [one for one in found.commits if "-kept" not in one.payload["path"]]
        return Withheld(kept, found.rows, found.digest)

    return [(DeadLetterCommitter, "withhold", lossy)]


def _split_files_are_not_synced() -> Patches:
    withhold = DeadLetterCommitter.withhold

    class Lazy:
        def __init__(self, store: Any) -> None:
            self._store = store

        def sync(self, paths: list[str]) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    def hasty(self: DeadLetterCommitter, committables: Any, refused: Any) -> Withheld:
        store, self._store = self._store, Lazy(self._store)
        try:
            return withhold(self, committables, refused)
        finally:
            self._store = store

    return [(DeadLetterCommitter, "withhold", hasty)]


def _release_is_for_any_epoch() -> Patches:
    """A decision about an epoch that is over hits the one that is held now."""
    rule = Gatekeeper.rule

    def any_epoch(self: Gatekeeper, checkpoint: int, ruling: Ruling, now_ms: float) -> tuple[str, list[Action]]:
        now = self._trial.checkpoint if self._trial is not None else checkpoint
        return rule(self, now, ruling, now_ms)

    return [(Gatekeeper, "rule", any_epoch)]


def _verdict_is_not_written() -> Patches:
    judged = Publisher._gates_say

    def silent(self: Publisher, outcome: Any, now_ms: float) -> list[Action]:
        outcome = Ruled([], outcome.refused_rows) if isinstance(outcome, Ruled) else outcome
        return judged(self, outcome, now_ms)

    return [(Publisher, "_gates_say", silent)]


def _asks_about_old_files() -> Patches:
    """The gate is asked about the first file of an epoch only."""
    judge = Gatekeeper.judge

    def lazy(self: Gatekeeper, manifest: Manifest, now_ms: float) -> list[Action]:
        first = {one.uid: one for one in reversed(manifest.commits)}
        return judge(self, msgspec.structs.replace(manifest, commits=list(first.values())), now_ms)

    return [(Gatekeeper, "judge", lazy)]


BUGS: dict[str, tuple[Callable[[], Patches], tuple[str, ...], int]] = {
    "late answers count": (_late_answers_count, ("gate", "verdict"), 8),
    "silence is consent": (_silence_is_consent, ("gate", "verdict"), 11),
    "a gate is waited for for ever": (_waits_for_ever, ("finishes",), 11),
    "a judged checkpoint outlives its attempt": (_outlives_its_attempt, ("gate", "attempts", "no_duplicate"), 99),
    "discarded rows are published": (_publishes_what_is_discarded, ("gate", "no_loss", "verdict"), 2),
    "discarded rows come back": (_discarded_rows_come_back, ("no_duplicate", "verdict", "gate"), 15),
    "withheld rows stay in the ledger": (_dead_letters_stay_in_the_ledger, ("ledger",), 2),
    "the ledger forgets withheld rows": (_ledger_forgets_what_was_withheld_before, ("ledger",), 4),
    "a split drops the good rows": (_split_drops_the_good_rows, ("no_loss", "verdict"), 4),
    "split files are not synced": (_split_files_are_not_synced, ("durable",), 4),
    "a release is for any epoch": (_release_is_for_any_epoch, ("gate",), 32),
    "the verdict is not written": (_verdict_is_not_written, ("verdict",), 0),
    "only one file is judged": (_asks_about_old_files, ("gate", "verdict"), 1),
}
"""Each bug with the invariants that may catch it, and the first seed that does."""


@pytest.mark.promise("H5")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_a_bug_is_caught(name, BUGS[name], run_gated, SEEDS, monkeypatch)
