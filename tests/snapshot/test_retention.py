"""Which checkpoint directories may go: never one that a kept epoch needs, never one that may be under way."""

from hypothesis import given
from hypothesis import strategies as st

from engine.core.paths import JobPaths
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import ManifestRef
from engine.snapshot.retention import disposable as decide

PATHS = JobPaths("job")


def disposable(paths: JobPaths, files: list[str], kept: list[ManifestRef], generation: int) -> list[str]:
    """Decides for epochs whose files all lie beside their manifests."""
    needed = {parsed for ref in kept if (parsed := paths.parse_checkpoint(ref.path))}
    return decide(paths, files, kept, needed, generation)


def ref(generation: int, checkpoint: int, epoch: int) -> ManifestRef:
    return ManifestRef(PATHS.manifest(AttemptId(generation, 1), checkpoint), "00", epoch, checkpoint)


def file(generation: int, checkpoint: int, attempt: int = 1) -> str:
    return PATHS.state_file(AttemptId(generation, attempt), checkpoint, "pv", SubtaskId("pv", 0), "panes")


def test_older_than_the_oldest_kept_goes_and_newer_stays() -> None:
    files = [file(1, checkpoint) for checkpoint in (1, 2, 3, 4, 5)]
    kept = [ref(1, 3, 2), ref(1, 4, 3)]
    assert disposable(PATHS, files, kept, generation=1) == ["job/gen-0001/chk-0000001", "job/gen-0001/chk-0000002"]


def test_what_an_older_generation_left_behind_goes_unless_an_epoch_needs_it() -> None:
    files = [file(1, 7), file(1, 8), file(1, 9), file(2, 9)]
    assert disposable(PATHS, files, [ref(1, 8, 3)], generation=2) == [
        "job/gen-0001/chk-0000007",
        "job/gen-0001/chk-0000009",
    ]


def test_files_that_are_no_checkpoints_are_left_alone() -> None:
    files = ["job/log/0000000001.json", "job/tables/pv/data/x.parquet", "job/history/a.json", "job/nonce-0001"]
    assert disposable(PATHS, files, [ref(9, 99, 9)], generation=9) == []


def test_without_an_epoch_nothing_of_this_generation_goes() -> None:
    assert disposable(PATHS, [file(1, 1), file(2, 1), file(2, 2)], [], generation=2) == ["job/gen-0001/chk-0000001"]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), max_size=30),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), max_size=3),
    st.integers(1, 4),
)
def test_nothing_that_a_kept_epoch_needs_is_ever_disposable(found, kept, generation) -> None:
    refs = [ref(gen, checkpoint, n) for n, (gen, checkpoint) in enumerate(kept)]
    gone = disposable(PATHS, [file(*f) for f in found], refs, generation)
    assert not {PATHS.checkpoint(*k) for k in kept} & set(gone)
    assert all(path.startswith("job/gen-") for path in gone)


def test_paths_of_different_operators_and_parts_never_meet() -> None:
    names = ["a", "a.b", "a/b", "a%b", "a b", "..", "ä", 'a"', "a:1"]
    made = {PATHS.state_file(AttemptId(1, 1), 1, uid, SubtaskId("v", 0), part) for uid in names for part in names}
    assert len(made) == len(names) ** 2
    assert all(path.count("/") == 4 for path in made)
