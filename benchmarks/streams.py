"""Measures, on real streams, what a Flight stream costs a slot, and what a control message costs both its ends.

`measured()` does so in other processes: at the end Arrow reports every cancelled stream on stderr, and the process
takes what is left of the servers with it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa

from engine.core.ports import Frame
from engine.network.control import ControlClient, ControlServer
from engine.network.transport import FlightTransport
from engine.protocol.ids import AttemptId, ChannelId
from engine.protocol.messages import Heartbeat, SubtaskTotals
from engine.protocol.signals import Watermark

HOST, TOKEN, PATIENCE_S = "127.0.0.1", "token", 20.0
ATTEMPT = AttemptId(1, 1)
SCHEMA = pa.schema([("value", pa.int64())])
TOTALS = SubtaskTotals(1_000, 1_000, 812.4375, 91.25, 91.25, 1_767_225_616_999)


class StreamCosts(msgspec.Struct, frozen=True):
    """The costs of one channel, both ends together; `open_ms` is time on the sender's task thread.

    `message_us` is the CPU time of one heartbeat on a control stream: encoding, both ends of the stream, decoding.
    """

    threads: float
    memory_kb: float
    open_ms: float
    message_us: float


def measured(times: int) -> list[StreamCosts]:
    """Measures several times: the costs depend much on other processes on the machine."""
    return [_in_own_process() for _ in range(times)]


def _in_own_process() -> StreamCosts:
    command = [sys.executable, "-m", "benchmarks.streams"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=True)
    return msgspec.json.decode(run.stdout, type=StreamCosts)


def _measure(channels: int, messages: int) -> StreamCosts:
    """Opens `channels` streams from one transport to another in this process, and uses each once."""
    arrived = threading.Semaphore(0)
    sender = _transport(lambda *frame: None)
    receiver = _transport(lambda *frame: arrived.release())
    ids = [ChannelId("edge", 0, index) for index in range(channels + 1)]
    _connect(sender, receiver, ids[:1], arrived)  # starts the servers and the connection
    threads, memory_kb = _status("Threads"), _status("VmRSS")
    open_ms = _connect(sender, receiver, ids[1:], arrived)
    threads, memory_kb = _status("Threads") - threads, _status("VmRSS") - memory_kb
    for transport in (sender, receiver):
        transport.close(ATTEMPT)
    return StreamCosts(threads / channels, memory_kb / channels, open_ms / channels, _message_us(messages))


def _transport(on_frame: Callable[..., None]) -> FlightTransport:
    return FlightTransport("scale", HOST, TOKEN, on_frame, lambda *grant: None, lambda *broken: None, silence_s=60)


def _connect(
    sender: FlightTransport, receiver: FlightTransport, ids: list[ChannelId], arrived: threading.Semaphore
) -> float:
    """Opens the channels, waits until a signal has come through each, and returns how long opening took."""
    began = time.perf_counter()
    for channel in ids:
        sender.open(ATTEMPT, channel, receiver.address, SCHEMA)
    opened_ms = 1000 * (time.perf_counter() - began)
    for channel in ids:
        sender.send(ATTEMPT, channel, Frame(1, Watermark(1), 0, 0))
    _wait(arrived, len(ids))
    return opened_ms


def _wait(arrived: threading.Semaphore, count: int) -> None:
    for _ in range(count):
        if not arrived.acquire(timeout=PATIENCE_S):
            raise TimeoutError(f"a stream carried nothing for {PATIENCE_S:.0f} s")


def _message_us(count: int) -> float:
    arrived = threading.Semaphore(0)
    server = ControlServer("scale", HOST, TOKEN, lambda *message: arrived.release(), lambda *gone: None)
    client = ControlClient("scale", "session", server.address, TOKEN, lambda message: None, lambda why: None)
    heartbeat = Heartbeat({f"{vertex}[0]": TOTALS for vertex in ("rows", "windows")})

    def send(messages: int) -> None:
        for _ in range(messages):
            client.send(heartbeat)
        _wait(arrived, messages)

    send(count // 10)
    began = time.process_time()
    send(count)
    cost_us = 1e6 * (time.process_time() - began) / count
    client.close()
    server.close(PATIENCE_S)
    return cost_us


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s*(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1))


if __name__ == "__main__":
    print(msgspec.json.encode(_measure(channels=50, messages=3_000)).decode())
