"""Hosts made of network namespaces: a driver and two workers' hosts, with a path between the two that can be cut.

The driver reaches each host by a link of its own. What the two hosts say to each other goes through a fourth
namespace, the crossing, which can stop forwarding: connections stay open then, and nothing comes through. This is what
a cut between two racks looks like.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x40000000
DRIVER, FIRST, SECOND = "10.77.0.1", "10.77.1.2", "10.77.2.2"


@dataclass(frozen=True)
class Host:
    """An address, and the network namespace in which it lies; empty: that of this process."""

    address: str = "127.0.0.1"
    namespace: str = ""

    def command(self, *arguments: str) -> list[str]:
        return [*(["ip", "netns", "exec", self.namespace] if self.namespace else []), *arguments]


class TwoHosts:
    """A context manager. Processes that run in the namespaces have to end before it does."""

    def __init__(self) -> None:
        made = f"weir{os.getpid()}"
        self._names = [f"{made}{kind}" for kind in ("d", "a", "b", "x")]
        driver, first, second, self._crossing = self._names
        self.driver, self.first, self.second = Host(DRIVER, driver), Host(FIRST, first), Host(SECOND, second)

    def __enter__(self) -> TwoHosts:
        try:
            for name in self._names:
                _ip("netns", "add", name)
                _ip("-n", name, "link", "set", "lo", "up")
            driver, first, second, crossing = self._names
            _ip("-n", driver, "address", "add", f"{DRIVER}/32", "dev", "lo")
            _link((driver, "10.77.1.1"), (first, FIRST))
            _link((driver, "10.77.2.1"), (second, SECOND))
            _link((crossing, "10.77.3.1"), (first, "10.77.3.2"))
            _link((crossing, "10.77.4.1"), (second, "10.77.4.2"))
            _route(first, f"{DRIVER}/32", "10.77.1.1")
            _route(second, f"{DRIVER}/32", "10.77.2.1")
            _route(first, f"{SECOND}/32", "10.77.3.1", FIRST)
            _route(second, f"{FIRST}/32", "10.77.4.1", SECOND)
            _route(crossing, f"{FIRST}/32", "10.77.3.2")
            _route(crossing, f"{SECOND}/32", "10.77.4.2")
            self.heal()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def cut(self) -> None:
        """Lets nothing pass between the two hosts from now on; both still reach the driver."""
        self._forward(0)

    def heal(self) -> None:
        self._forward(1)

    def _forward(self, on: int) -> None:
        with inside(self._crossing):
            Path("/proc/sys/net/ipv4/ip_forward").write_text(str(on))


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Moves this thread, and the processes that it starts, into a network namespace."""
    with open("/proc/thread-self/ns/net") as before, open(f"/var/run/netns/{namespace}") as wanted:
        _enter(wanted.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def why_not() -> str:
    """Returns why this machine can't make hosts of namespaces, or nothing if it can."""
    try:
        with TwoHosts() as hosts, inside(hosts.driver.namespace):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces can't be made here: {getattr(error, 'stderr', '') or error}"


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _link(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Links two namespaces, each with its address in the same network of 24 bits."""
    (near, near_address), (far, far_address) = one, other
    ends = [f"v{address.replace('.', '')}" for address in (near_address, far_address)]
    _ip("link", "add", ends[0], "netns", near, "type", "veth", "peer", "name", ends[1], "netns", far)
    for namespace, address, end in ((near, near_address, ends[0]), (far, far_address, ends[1])):
        _ip("-n", namespace, "address", "add", f"{address}/24", "dev", end)
        _ip("-n", namespace, "link", "set", end, "up")


def _route(namespace: str, to: str, via: str, source: str = "") -> None:
    _ip("-n", namespace, "route", "add", to, "via", via, *(["src", source] if source else []))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
