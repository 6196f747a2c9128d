"""Jobs that are rescaled while they run stay exact under the faults of a seed (D7, H6).

Topology: the jobs of the other seeds, of which one JobMaster (sometimes two at once) runs one to three slots.
Faults: those of the seed, and one to four requests for another parallelism, of all operators or of one, at random
moments; in some seeds Spark has no room for further slots, for a while or for ever.
Checks: all invariants of tests/simulation/invariants.py; the state restored at another parallelism is the state before;
each attempt starts at the parallelism that is durable, and that was proved; no slot that was released is deployed to.
"""

from __future__ import annotations

import warnings
from collections import Counter

import pytest

from tests.simulation.bugs import PlantedBug
from tests.simulation.rescale_bugs import PROOF_BUGS, RESCALE_BUGS, caught, search
from tests.simulation.rescales import DIES_AFTER_PROOF, GOES_BACK, run_failing_proofs, run_rescales

SEEDS = 300
CHUNK = 30
FAILING_PROOFS = 300

HITS: Counter[str] = Counter()
RUN: set[int] = set()

EXPECTED = (
    "rescale: up",
    "rescale: down or same",
    "rescale: completed",
    "rescale: failed, the attempt failed meanw",
    "rescale: failed, the job ended",
    "rescale: failed, only 2 of 3 slots have r",
    "note: rescale_switching",
)


@pytest.mark.promise("D7", "H6")
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_a_job_that_is_rescaled_while_it_runs_stays_exact(first: int) -> None:
    for seed in range(first, first + CHUNK):
        result = run_rescales(seed)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        HITS.update(result.hits)
        RUN.add(seed)


def test_rescales_end_in_every_way_in_these_seeds() -> None:
    """Uses the counts of the seeds that this worker ran before; runs further ones until every end was seen."""
    for seed in range(SEEDS):
        if all(HITS[name] for name in EXPECTED):
            break
        if seed not in RUN:
            HITS.update(run_rescales(seed).hits)
    assert all(HITS[name] for name in EXPECTED), [name for name in EXPECTED if not HITS[name]]


@pytest.mark.promise("D7", "H6")
@pytest.mark.parametrize("bug", RESCALE_BUGS, ids=lambda bug: bug.name.replace(" ", "_"))
def test_a_planted_bug_is_caught_by_its_seed(bug: PlantedBug) -> None:
    if caught(bug, bug.seed):
        assert run_rescales(bug.seed).violation is None
        return
    # One message more or less in the engine gives every seed another schedule; then another seed has to catch the bug.
    seed = search(bug, range(2000))
    assert seed is not None, f"no seed notices: {bug.name}"
    warnings.warn(f"seed {bug.seed} no longer catches {bug.name!r}; record seed {seed}", stacklevel=1)


@pytest.mark.promise("H6")
def test_a_jobmaster_that_dies_after_a_failed_proof_is_followed_by_one_at_the_old_parallelism() -> None:
    """Faults: restores at another parallelism lose a row, and mostly the JobMaster that notices it dies at once.

    Few seeds come as far as a proof, so it runs seeds until both ends were seen several times.
    """
    hits: Counter[str] = Counter()
    for seed in range(FAILING_PROOFS):
        result = run_failing_proofs(seed)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        hits.update(result.hits)
        if all(hits[name] >= 3 for name in (DIES_AFTER_PROOF, GOES_BACK)):
            return
    pytest.fail(f"{FAILING_PROOFS} seeds take these ends too rarely: {hits[DIES_AFTER_PROOF]=}, {hits[GOES_BACK]=}")


@pytest.mark.promise("H6")
@pytest.mark.parametrize("bug", PROOF_BUGS, ids=lambda bug: bug.name.replace(" ", "_"))
def test_a_planted_bug_is_caught_by_a_failing_proof(bug: PlantedBug) -> None:
    assert caught(bug, bug.seed, run_failing_proofs) or search(bug, range(200), run_failing_proofs) is not None
