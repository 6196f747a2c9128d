"""Events are one JSON object each, and are read back as what they were."""

from __future__ import annotations

import typing

import msgspec
import pytest

from engine.jobmaster import events
from tests.seen import completed

EXAMPLES = [
    events.Claimed(last_seen_ms=3),
    events.ClaimFailed("away"),
    events.ClaimLost(),
    events.SlotsMissing(1, 2, 60_000.0, "it does not see the store"),
    events.SlotRefused(4711, "it does not see the store"),
    events.SlotRegistered(4711, 2),
    events.Deploying("1.2", 4),
    events.Running("1.2"),
    events.SlowStep(0, 4711, "clean", "clean[0]", 10_000.0, "File …"),
    events.SlotKilled(4711, "a slot's task thread hung"),
    events.TaskFailed("a[0]: ", "boom", "Traceback"),
    events.AttemptFailed("1.2", "slot_lost", "gone", slot=1),
    events.Stopped("finished", "all done"),
    events.Triggered(5, "1.2"),
    events.OddAcknowledgement(5, "a[0]", "duplicate"),
    events.Aborted(5, "expired", "no answer"),
    events.PublishUnknown(5),
    events.Published(5, 4),
    completed(4, {"source:a": 1}),
    events.SavepointTriggered("nightly", "/backups/nightly", 6, "no"),
    events.SavepointTaken("nightly", "/backups/nightly", 6, 1024),
    events.SavepointCompleted("nightly", "/backups/nightly", 6, 4, 1024, 120.0),
    events.SavepointFailed("nightly", "/backups/nightly", "no space"),
    events.Stopping(False, "nightly"),
    events.StopFailed("no space"),
    events.EpochHeld(5, 4, "out", "pv >= 0", "1 of 9 rows are refused by pv >= 0", 9, 1),
    events.GateRuled(5, 4, "out", "released", 9, 1, "1 of 9 rows are refused by pv >= 0"),
    events.GateFailed("out", "the process of the gates ended with code -9"),
    events.GateAnswerIgnored(3),
    events.RescaleStarted("1-1", {"pv": 2}, {"pv": 3}, 2, 3),
    events.RescaleCheckpoint("1-1", 5),
    events.RescaleSwitching("1-1", 4),
    events.Rescaled("1-1", 4, 310.0, "00ff", "00ff", 12),
    events.RescaleFailed("1-1", "only 2 of 3 slots have registered after 60 s"),
    events.Refreshed("prices", 2, None),
    events.Tidied("out", 32, 1, 4711, 64),
    events.NotTidied("out", "a file has 12 bytes, and its record says 13"),
    events.StateDropped("pv", "the window is gone, and its state would be lost"),
]


def test_there_is_an_example_of_every_event() -> None:
    assert {type(example) for example in EXAMPLES} == set(typing.get_args(events.AnyEvent))


@pytest.mark.promise("F3")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.kind)
def test_an_event_is_read_back_as_it_was_written(example: events.AnyEvent) -> None:
    stamped = events.stamped(example, 1234, 7)
    line = msgspec.json.encode(stamped)
    assert events.decode(line) == stamped
    assert msgspec.json.decode(line).items() >= {"kind": example.kind, "at_ms": 1234, "generation": 7}.items()


@pytest.mark.parametrize(
    "line", [b"", b'{"kind": "trigg', b'{"kind": "of_another_version"}', b"[]", b'{"kind":"running"}']
)
def test_a_line_that_is_no_event_is_none(line: bytes) -> None:
    assert events.decode(line) is None
