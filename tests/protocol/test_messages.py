"""Every message survives the wire: what is decoded is what was encoded, and each is told apart by its tag."""

import msgspec
import pytest

from engine.protocol import messages as m
from engine.protocol.failures import Fault, Raised
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.manifest import Committable, ManifestRef, StateFile, SubtaskState, Timings
from engine.protocol.redistribution import Distribution
from engine.protocol.scaling import Scaling
from engine.protocol.state_proof import StateDigest, SubtaskDigests
from engine.protocol.watermark_alignment import AlignmentWait

ATTEMPT = AttemptId(3, 7)
SUBTASK = SubtaskId("window → sink", 1)
DIGEST = StateDigest("pv", "panes", Distribution.KEYED, 3, 2**64 - 1)
STATE = SubtaskState(
    SUBTASK,
    [StateFile("pv", "panes", "job/x.arrow", 12, "ab", 3, 0, 64)],
    {"views": {"splits": {"0": {"position": 5, "seen_ms": None}}}, "pv": {"watermark": -(2**63)}},
)
COMMITTABLE = Committable("out", 1, ATTEMPT, 9, 2, {"path": "a/b", "size": 2**40, "rows": 1})

SLOT_MESSAGES = [
    m.Register("session", "grpc://127.0.0.1:1", 42, 0, "nonce", "plan"),
    m.Heartbeat({"a[0]": m.SubtaskTotals(rows_in=1, busy_ms=0.5)}),
    m.Deployed(ATTEMPT),
    m.Connected(ATTEMPT),
    m.Acknowledge(
        ATTEMPT, 9, STATE, [COMMITTABLE], {"sent:e": 1, "digest:out": 2**64 - 1}, Timings(1.5, 2.0, 0.1, 9.0)
    ),
    m.Decline(ATTEMPT, 9, SUBTASK, True, "no space left"),
    m.SubtaskFinished(ATTEMPT, SUBTASK),
    m.WatermarkReport(ATTEMPT, 3, {"a[0]": -(2**63), "a[1]": None}),
    m.Heartbeat({"a[0]": m.SubtaskTotals(waits=AlignmentWait("all", 1, 2, 12_000, 10_000))}),
    m.Heartbeat({}, m.LongStep(12_000.0, "slow", "slow[0]", "File …")),
    m.Left(ATTEMPT),
    m.Flowing(ATTEMPT),
    m.Deployed(ATTEMPT, [SubtaskDigests(SUBTASK, [DIGEST])]),
    m.TaskFailed(ATTEMPT, SUBTASK, "pv", "boom", "Traceback\n…", Fault.JOB),
    m.TaskFailed(ATTEMPT, None, "", "corrupt", "", Fault.OUTSIDE, True),
    m.OverBudget(2, 1),
    m.NotBuilt(4711, 9, 1, "JobError: no module 'x'", Fault.JOB, Raised("JobError", "no module 'x'", "job.py:1")),
    m.NotBuilt(4711, 9, 1, "OSError: away", Fault.OUTSIDE),
    m.Register("session", "grpc://127.0.0.1:1", 42, 0, "", "plan", unseen="FileNotFoundError: …"),
    m.Heartbeat({}, io=m.LongStep(12_000.0, "", "source[0]", "File …")),
]
MASTER_MESSAGES = [
    m.Welcome(3),
    m.Deploy(ATTEMPT, 0, ["a", "b"], ManifestRef("p", "c", 4, 9), "1d"),
    m.Deploy(ATTEMPT, 1, ["a", "b"], None, "1d"),
    m.Deploy(ATTEMPT, 1, ["a", "b"], None, "1d", Scaling(3, {"pv": 4}), "plan", digests=True),
    m.Start(ATTEMPT),
    m.Trigger(ATTEMPT, 9, 1_700_000_000_000),
    m.Trigger(ATTEMPT, 9, 1_700_000_000_000, suspend=True),
    m.Trigger(ATTEMPT, 9, 1_700_000_000_000, digests=True),
    m.Drain(ATTEMPT),
    m.WatermarkLimits(ATTEMPT, 4, {"all": 2**63 - 1}),
    m.NotifyComplete(ATTEMPT, 9),
    m.NotifyAbort(ATTEMPT, 9),
    m.Rollback(ATTEMPT),
    m.EndProcess("it hangs"),
    m.Shutdown("finished"),
    m.MasterHeartbeat(),
]


@pytest.mark.parametrize("message", SLOT_MESSAGES, ids=lambda message: type(message).__name__)
def test_what_a_slot_says_survives_the_wire(message: m.SlotMessage) -> None:
    assert m.decode_slot_message(m.encode(message)) == message


@pytest.mark.parametrize("message", MASTER_MESSAGES, ids=lambda message: type(message).__name__)
def test_what_the_jobmaster_says_survives_the_wire(message: m.MasterMessage) -> None:
    assert m.decode_master_message(m.encode(message)) == message


def test_no_message_is_left_out_of_these_tests() -> None:
    assert {type(message) for message in SLOT_MESSAGES} == set(m.SlotMessage.__args__)
    assert {type(message) for message in MASTER_MESSAGES} == set(m.MasterMessage.__args__)


def test_a_message_of_the_wrong_direction_or_shape_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        m.decode_slot_message(m.encode(m.Start(ATTEMPT)))
    with pytest.raises(msgspec.ValidationError):
        m.decode_master_message(b'{"type":"Start"}')
    with pytest.raises(msgspec.DecodeError):
        m.decode_master_message(b'{"type":"Start","att')
