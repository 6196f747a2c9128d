"""Signals are told apart on the wire by their tags; a tag must never change its meaning."""

import msgspec
import pytest

from engine.protocol.signals import Barrier, EndOfData, Signal, StreamStatus, Watermark


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
