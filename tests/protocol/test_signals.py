"""Signals are told apart on the wire by their tags; a tag must never change its meaning."""

import msgspec
import pytest

from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK, Barrier, EndOfData, Signal, StreamStatus, Watermark


@pytest.mark.promise("B2")
@pytest.mark.parametrize(
    ("signal", "tag"),
    [
        (Watermark(-5), "w"),
        (Barrier(3, 10), "b"),
        (EndOfData(), "e"),
        (StreamStatus(True), "s"),
        (StreamStatus(False), "s"),
    ],
)
def test_a_signal_arrives_as_it_was_sent(signal: Signal, tag: str) -> None:
    data = msgspec.msgpack.encode(signal)
    assert msgspec.msgpack.decode(data)["type"] == tag
    assert msgspec.msgpack.decode(data, type=Signal) == signal


def test_the_lowest_and_the_highest_watermark_are_those_of_64_bits() -> None:
    assert (MIN_WATERMARK, MAX_WATERMARK) == (-9_223_372_036_854_775_808, 9_223_372_036_854_775_807)
