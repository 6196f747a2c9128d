"""The rules of the epoch log, without a store: which record may follow which."""

import pytest

from engine.protocol.epoch_records import Claimed, RecordKind, epoch_after, fence_after
from engine.protocol.manifest import ManifestRef


def ref(epoch: int, checkpoint: int) -> ManifestRef:
    return ManifestRef(f"m{epoch}", "00", epoch, checkpoint)


def test_the_first_record_is_the_fence_of_generation_one() -> None:
    record = fence_after(None, "a")
    assert (record.number, record.kind, record.generation, record.newest, record.next_checkpoint) == (
        1,
        RecordKind.FENCE,
        1,
        None,
        1,
    )


@pytest.mark.promise("F2")
def test_a_fence_carries_the_newest_epoch_over_to_the_next_generation() -> None:
    record = epoch_after(fence_after(None, "a"), ref(1, 4))
    fence = fence_after(record, "b")
    assert (fence.number, fence.generation, fence.owner) == (3, 2, "b")
    assert fence.newest == ref(1, 4)
    assert fence.next_checkpoint == 5
    assert Claimed(fence).generation == 2


def test_an_epoch_keeps_the_generation_and_owner_of_what_it_follows() -> None:
    record = epoch_after(fence_after(fence_after(None, "a"), "b"), ref(1, 1))
    assert (record.number, record.kind, record.generation, record.owner) == (3, RecordKind.EPOCH, 2, "b")


def test_epochs_are_dense() -> None:
    first = epoch_after(fence_after(None, "a"), ref(1, 1))
    assert epoch_after(first, ref(2, 7)).number == 3
    with pytest.raises(AssertionError, match="epoch 3 would follow 1"):
        epoch_after(first, ref(3, 7))
    with pytest.raises(AssertionError, match="epoch 1 would follow 1"):
        epoch_after(first, ref(1, 7))


def test_a_checkpoint_id_is_never_used_twice() -> None:
    first = epoch_after(fence_after(None, "a"), ref(1, 5))
    with pytest.raises(AssertionError, match="checkpoint 5 was used before"):
        epoch_after(first, ref(2, 5))


def test_a_job_keeps_the_id_of_its_first_record_and_no_other_job_has_it() -> None:
    first = fence_after(None, "a")
    assert fence_after(epoch_after(first, ref(1, 1)), "b").job_id == first.job_id
    assert fence_after(None, "b").job_id != first.job_id
