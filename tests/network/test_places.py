"""Processes of a job find each other at a host, or in a folder that only its owner can open."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pytest

from engine.core.ports import Frame
from engine.network.control import ControlClient, ControlServer
from engine.network.places import holds_sockets, place_towards
from engine.network.transport import FlightTransport
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.messages import Heartbeat


@pytest.mark.parametrize("kind", ["host", "folder"])
def test_a_slot_reaches_its_jobmaster_and_listens_beside_it(kind: str) -> None:
    heard: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place = "127.0.0.1" if kind == "host" else folder
        server = ControlServer("job", place, "token", lambda session, message: heard.append(session), lambda *_: None)
        client = ControlClient("job", "s1", server.address, "token", lambda message: None, lambda why: None)
        client.send(Heartbeat({}))
        deadline_s = time.monotonic() + 60
        while not heard and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert heard == ["s1"] and place_towards(server.address) == place
        assert [path.suffix for path in Path(folder).iterdir()] == ([] if kind == "host" else [".sock"])
        client.close()
        server.close(5)


def test_a_channel_between_two_slots_goes_through_a_folder_too() -> None:
    frames: list[int] = []
    grants: list[int] = []

    def nothing(*_: object) -> None: ...

    with tempfile.TemporaryDirectory() as folder:
        sender = FlightTransport("job", folder, "t", nothing, lambda *got: grants.append(got[2]), nothing, 5.0)
        receiver = FlightTransport(
            "job", folder, "t", lambda *got: frames.append(got[2].sequence), nothing, nothing, 5.0
        )
        batch, attempt, channel = pa.record_batch({"n": [1]}), AttemptId(1, 1), ChannelId("edge", 0, 0)
        sender.open(attempt, channel, receiver.address, batch.schema)
        receiver.grant(attempt, channel, 1000)
        sender.send(attempt, channel, Frame(1, batch, batch.nbytes, 0))
        deadline_s = time.monotonic() + 60
        while not (frames and grants) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        sender.close(attempt)
        receiver.close(attempt)
    assert (frames, grants) == ([1], [1000])


def test_a_folder_with_a_long_path_holds_no_sockets() -> None:
    assert holds_sockets(Path("/tmp/weir-scratch-abcdefgh")) and not holds_sockets(Path("/" + "x" * 90))
