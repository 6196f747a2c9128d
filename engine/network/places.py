"""Where the Flight servers of a job listen: at a host, or in a folder of Unix sockets.

gRPC keeps a connection that never asks for anything open for minutes, and no option of Arrow's bounds their number. In
a folder that only its owner can open, nobody else can connect at all.
"""

from __future__ import annotations

import socket
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import flight

_UNIX = "grpc+unix://"
SOCKET_NAME_BYTES = 43
"""The bytes that a socket's name may add to its folder's path: `/.<uuid>.sock` of PySpark is the longest."""
SOCKET_PATH_BYTES = 104
"""The longest path of a Unix socket, of the systems that Weir runs on."""


def holds_sockets(folder: Path) -> bool:
    """True if the path of the folder is short enough."""
    return len(str(folder).encode()) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES


def location(place: str) -> str:
    """Returns where a new server listens: a free port of a host, or a new socket in a folder (an absolute path)."""
    return f"{_UNIX}{place}/{uuid.uuid4().hex}.sock" if place.startswith("/") else f"grpc://{place}:0"


def address(location: str, server: flight.FlightServerBase) -> str:
    """Returns the address at which a server is reached."""
    return location if location.startswith(_UNIX) else f"{location.removesuffix(':0')}:{server.port}"


def place_towards(address: str) -> str:
    """Returns the place from which a server at `address` is reached: the same folder, or this machine's address."""
    if address.startswith(_UNIX):
        return str(Path(address.removeprefix(_UNIX)).parent)
    found = urlsplit(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((found.hostname, found.port))  # UDP: this sends nothing
        return str(probe.getsockname()[0])
