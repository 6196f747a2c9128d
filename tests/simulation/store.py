"""A store in memory. Only synced files surely survive a crash, and the outcome of a create may be unknown."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from engine.core.errors import StoreError, SyncFailed
from engine.core.paths import check_store_path
from engine.protocol.epoch_records import Created
from engine.store.memory import listed
from tests.simulation.world import Process, World


@dataclass(frozen=True)
class StoreFaults:
    """Probabilities per call, while the world is stormy."""

    error: float = 0.0
    unknown: float = 0.0
    sync_failed: float = 0.0


class SimStore:
    """The store that all processes share. Files not yet synced belong to their writer and may vanish with it."""

    def __init__(self, world: World, faults: StoreFaults) -> None:
        self.world = world
        self.faults = faults
        self.durable: dict[str, bytes] = {}
        self.cached: dict[str, tuple[bytes, Process]] = {}
        self.on_created: Callable[[str, bytes], None] = lambda path, data: None
        self.on_deleted: Callable[[str], None] = lambda path: None

    def content(self, path: str) -> bytes | None:
        cached = self.cached.get(path)
        return cached[0] if cached is not None else self.durable.get(path)

    def all(self) -> set[str]:
        return {*self.durable, *self.cached}

    def below(self, path: str) -> list[str]:
        return sorted(found for found in self.all() if found.startswith(path + "/"))

    def make(self, path: str, data: bytes) -> Created:
        if self.content(path) is not None:
            return Created.EXISTS
        self.durable[path] = data
        self.world.log(f"  created {path} {zlib.crc32(data):08x}")
        self.on_created(path, data)
        return Created.CREATED

    def host_crashed(self) -> None:
        """Called when every process has died with its host."""
        for writer in {id(writer): writer for _, writer in self.cached.values()}.values():
            self.forget(writer)

    def forget(self, process: Process) -> None:
        """Called when a process has died: each file that it had not synced survives, is lost, or is torn."""
        for path in sorted(p for p, (_, writer) in self.cached.items() if writer is process):
            data, _ = self.cached.pop(path)
            fate = self.world.random.randrange(3)
            if fate == 0:
                self.durable[path] = data
            elif fate == 1:
                self.durable[path] = data[: self.world.random.randrange(len(data) + 1)]
            self.world.hits.add(f"store: an unsynced file {('survives', 'is torn', 'is lost')[fate]}")


class StoreView:
    """The `Store` port of one process."""

    def __init__(self, store: SimStore, process: Process) -> None:
        self._store = store
        self._process = process

    def _begin(self, what: str, path: str) -> None:
        if path or what != "list":
            check_store_path(path)
        self._store.world.breathe()
        self._process.touch(what)
        if self._store.world.chance(self._store.faults.error):
            self._store.world.hits.add(f"store: {what} fails")
            raise StoreError(f"simulated: can't {what} {path}")

    def write(self, path: str, data: bytes) -> None:
        self._begin("write", path)
        self._store.cached[path] = (data, self._process)
        self._store.world.log(f"  wrote {path} {zlib.crc32(data):08x}")

    def sync(self, paths: list[str]) -> None:
        for path in paths:
            self._begin("sync", path)
            store = self._store
            if store.world.chance(store.faults.sync_failed):
                raise SyncFailed(f"simulated: fsync of {path} failed")
            data = store.content(path)
            if data is None:
                raise StoreError(f"can't open {path} to sync it: it is gone")
            store.cached.pop(path, None)
            store.durable[path] = data
            store.world.log(f"  synced {path}")

    def create(self, path: str, data: bytes) -> Created:
        self._begin("create", path)
        store, world = self._store, self._store.world
        if world.chance(store.faults.unknown):
            fate = world.random.randrange(3)
            world.hits.add(f"store: create UNKNOWN, {('applied', 'not applied', 'applied late')[fate]}")
            if fate == 0:
                store.make(path, data)
            elif fate == 2:
                world.after(
                    world.random.random() * 60, None, f"late create {path}", lambda: _ignore(store.make(path, data))
                )
            return Created.UNKNOWN
        outcome = store.make(path, data)
        world.hits.add(f"store: create {outcome.name}")
        self._process.touch("created")  # the process may die before it gets the answer
        return outcome

    def read(self, path: str) -> bytes:
        self._begin("read", path)
        data = self._store.content(path)
        if data is None:
            raise FileNotFoundError(path)
        return data

    def list(self, prefix: str) -> list[str]:
        self._begin("list", prefix)
        return listed(self._store.all(), prefix)

    def delete(self, path: str) -> None:
        self._begin("delete", path)
        store = self._store
        for found in [path, *store.below(path)]:
            if store.content(found) is not None:
                store.on_deleted(found)
                store.cached.pop(found, None)
                store.durable.pop(found, None)
                store.world.log(f"  deleted {found}")

    def uri(self, path: str) -> str:
        return f"mem:///{path}"


def _ignore(outcome: Created) -> None:
    return None
