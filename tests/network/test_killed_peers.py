"""Goal: a process that serves streams survives peers that are killed while it writes to them.

Topology: a ControlServer in a process of its own, and clients with twenty streams each. Faults: SIGKILL of a client
while the server writes on all of its streams. Checks: the server heard of every lost stream, and did not crash. (A
writer still at work when the call returned was freed under it: a drill's kill -9 of a slot took the JobMaster along.)
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENTS, STREAMS = 6, 20

SERVER = """
import os, sys, time
from engine.network.control import ControlServer
from engine.protocol.messages import MasterHeartbeat

wanted = int(sys.argv[1])
live, gone = set(), []

def on_gone(session, why):
    live.discard(session)
    gone.append(session)

server = ControlServer("job", "127.0.0.1", "token", lambda session, message: live.add(session), on_gone)
print(server.address, flush=True)
deadline = time.monotonic() + 300
while len(gone) < wanted and time.monotonic() < deadline:
    for session in list(live):
        for _ in range(5):
            server.send(session, MasterHeartbeat())
    time.sleep(0.0005)
time.sleep(0.2)
print(len(gone), flush=True)
os._exit(0)
"""

CLIENT = """
import sys, time
from engine.network.control import ControlClient
from engine.protocol.messages import Heartbeat

address, name, count = sys.argv[1:]
nobody = lambda heard: None
streams = [ControlClient("job", f"{name}-{n}", address, "token", nobody, nobody) for n in range(int(count))]
for stream in streams:
    stream.send(Heartbeat({}))
print("up", flush=True)
time.sleep(300)
"""


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_server_survives_clients_that_are_killed_while_it_writes_to_them() -> None:
    server = python(SERVER, CLIENTS * STREAMS)
    try:
        address = said(server)
        for number in range(CLIENTS):
            client = python(CLIENT, address, number, STREAMS)
            try:
                assert said(client) == "up", f"the server ended with {server.poll()}"
                time.sleep(0.15)
            finally:
                client.kill()
                client.wait()
        assert said(server) == str(CLIENTS * STREAMS), f"the server ended with {server.wait()}"
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
