"""A store in memory. Only synced files surely survive a crash, and the outcome of a create may be unknown.

The name of a created file is visible at once, and durable only when its directory is synced: by the create that made
it, by any later create or sync there, or by luck. Until then a crash of the host forgets it. A directory forgets the
newest of its names first, as a file system with a journal does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from engine.core.errors import StoreError, SyncFailed
from engine.core.paths import check_store_path
from engine.core.ports import Data, Store
from engine.protocol.epoch_records import Created
from engine.store.below import Below
from engine.store.memory import listed
from engine.store.reading import content
from tests.simulation.world import Process, Violation, World

RECENT_MS = 40.0
EXISTS_OURS = "store: create EXISTS, ours"
PARTIAL_LIST = "store: a list lacks new files"
SWAPPED = "store: an empty one takes its place"
RECORD_LOST = "store: a record is created in the empty one"
NAME_FORGOTTEN = "store: a name that was not durable is forgotten"


@dataclass(frozen=True)
class StoreFaults:
    """Probabilities per call, while the world is stormy."""

    error: float = 0.0
    unknown: float = 0.0
    sync_failed: float = 0.0
    exists_ours: float = 0.0
    """A create makes the file and answers EXISTS: its request was sent twice, as NFS does. The next read may fail."""
    partial_list: float = 0.0
    """A list leaves out some of the files that were made a moment ago."""
    name_lost: float = 0.0
    """After a create with an unknown outcome the store's host crashes, and the processes go on."""


class SimStore:
    """The store that all processes share. Files not yet synced belong to their writer and may vanish with it."""

    def __init__(self, world: World, faults: StoreFaults) -> None:
        self.world = world
        self.faults = faults
        self.durable: dict[str, bytes] = {}
        self.cached: dict[str, tuple[bytes, Process]] = {}
        self.unnamed: dict[str, bytes] = {}  # durable content under names that are visible, and not durable yet
        self.full_until_ms = 0.0
        self.away = False
        self._late: list[tuple[str, bytes]] = []  # creates that the store applies while it is away
        self._made_ms: dict[str, float] = {}
        self.on_created: Callable[[str, bytes], None] = lambda path, data: None
        self.on_deleted: Callable[[str], None] = lambda path: None

    def content(self, path: str) -> bytes | None:
        cached = self.cached.get(path)
        return cached[0] if cached is not None else self.unnamed.get(path, self.durable.get(path))

    def all(self) -> set[str]:
        return {*self.durable, *self.cached, *self.unnamed}

    def recent(self, path: str) -> bool:
        return self.world.now_ms - self._made_ms.get(path, 0.0) < RECENT_MS

    def write(self, path: str, data: bytes, process: Process) -> None:
        if self.content(path) is None:
            self._made_ms[path] = self.world.now_ms
        self.cached[path] = (bytes(data), process)

    def below(self, path: str) -> list[str]:
        return sorted(found for found in self.all() if found.startswith(path + "/"))

    def link(self, path: str, data: bytes) -> Created:
        """Makes a file visible, if there is none. Its name is durable once its directory is synced."""
        if self.content(path) is not None:
            return Created.EXISTS
        self.unnamed[path] = data
        self._made_ms[path] = self.world.now_ms
        self.world.log(f"  created {path} {zlib.crc32(data):08x}")
        return Created.CREATED

    def link_late(self, path: str, data: bytes) -> None:
        """Applies a create that was sent long ago: to the store that it was sent to, never to a folder in its place."""
        if self.away:
            self._late.append((path, data))
        else:
            self.link(path, data)

    def sync_directory(self, path: str) -> None:
        """Makes the names in the directory of this file durable."""
        directory = path.rsplit("/", 1)[0]
        for name in [name for name in self.unnamed if name.rsplit("/", 1)[0] == directory]:
            self._named(name)

    def _named(self, path: str) -> None:
        self.durable[path] = self.unnamed.pop(path)
        self.on_created(path, self.durable[path])

    def host_crashed(self) -> None:
        """Called when every process has died with its host."""
        for writer in {id(writer): writer for _, writer in self.cached.values()}.values():
            self.forget(writer)
        self.forget_names()

    def forget_names(self) -> None:
        """Called when the store's host has crashed: names that are not durable may be gone."""
        for path in [path for path in self.unnamed if self.world.random.random() < 0.5]:
            self._named(path)
        for path in list(self.unnamed):
            del self.unnamed[path]
            self.world.hits.add(NAME_FORGOTTEN)
            self.world.log(f"  forgotten {path}")

    def put(self, path: str) -> None:
        """Puts a durable file into the store. Draws nothing."""
        self.durable[path] = b""

    def goes_away(self, for_ms: float) -> None:
        """Puts an empty store in its place for a while, as a mount that is gone leaves an empty folder.

        Work that is under way at this moment may have found the store there, and create a record of the log where it
        was: no store can exclude that. Nobody may take that record for made (`check_completed`). Work that
        begins later creates none.
        """
        if self.away:
            return
        real = self.durable, self.cached, self.unnamed, self.on_created, self.on_deleted
        under_way = self.world.under_way()

        def created(path: str, data: bytes) -> None:
            if "/log/" not in path:
                return
            if self.world.fiber not in under_way:
                raise Violation("mounted", f"{path} is created where the store is not mounted")
            self.world.hits.add(RECORD_LOST)

        def is_back() -> None:
            self.durable, self.cached, self.unnamed, self.on_created, self.on_deleted = real
            self.away, late, self._late = False, self._late, []
            for path, data in late:
                self.link(path, data)

        self.away = True
        self.world.hits.add(SWAPPED)
        self.durable, self.cached, self.unnamed = {}, {}, {}
        self.on_created, self.on_deleted = created, lambda path: None
        self.world.after(for_ms, None, "the store is back", is_back)

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
        self._unreadable = ""  # the next read of this file fails

    def _begin(self, what: str, path: str) -> None:
        if path or what != "list":
            check_store_path(path)
        self._store.world.breathe()
        self._process.touch(what)
        if self._store.world.chance(self._store.faults.error):
            self._store.world.hits.add(f"store: {what} fails")
            raise StoreError(f"simulated: can't {what} {path}")
        if what in ("write", "create") and self._store.world.now_ms < self._store.full_until_ms:
            raise StoreError(f"simulated: can't {what} {path}: no space left")

    def write(self, path: str, data: Data) -> None:
        self._begin("write", path)
        data = bytes(data)
        self._store.write(path, data, self._process)
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
            if path not in store.unnamed:
                store.durable[path] = data
            store.sync_directory(path)
            store.world.log(f"  synced {path}")

    def create(self, path: str, data: bytes) -> Created:
        self._begin("create", path)
        store, world = self._store, self._store.world
        if world.chance(store.faults.unknown):
            fate = world.random.randrange(3)
            world.hits.add(f"store: create UNKNOWN, {('applied', 'not applied', 'applied late')[fate]}")
            if fate == 0:
                store.link(path, data)
                if world.chance(store.faults.name_lost):
                    if world.random.random() < 0.5:  # its successor finds the name, and must not build on it
                        self._process.doom, self._process.fuse = "", 0
                    world.after(60 * world.random.random(), None, "the store's host crashes", store.forget_names)
            elif fate == 2:
                world.after(
                    world.random.random() * 60, None, f"late create {path}", lambda: store.link_late(path, data)
                )
            return Created.UNKNOWN
        outcome = store.link(path, data)
        self._process.touch("linked")  # the process may die before the name is durable
        store.sync_directory(path)
        world.hits.add(f"store: create {outcome.name}")
        self._process.touch("created")  # the process may die before it gets the answer
        if outcome is Created.CREATED and world.chance(store.faults.exists_ours):
            world.hits.add(EXISTS_OURS)
            self._unreadable = path if world.random.random() < 0.5 else ""
            return Created.EXISTS
        return outcome

    def read(self, path: str) -> bytes:
        self._begin("read", path)
        if path == self._unreadable:
            self._unreadable = ""
            raise StoreError(f"simulated: can't read {path}")
        data = self._store.content(path)
        if data is None:
            raise FileNotFoundError(path)
        return data

    def read_all(self, paths: list[str]) -> list[bytes | None]:
        return [content(self, path) for path in paths]

    def sizes(self, paths: list[str]) -> list[int | None]:
        """Draws nothing, so that seeds stay what they were before it came."""
        for path in paths:
            check_store_path(path)
        return [len(data) if (data := self._store.content(path)) is not None else None for path in paths]

    def list(self, prefix: str) -> list[str]:
        self._begin("list", prefix)
        store, world = self._store, self._store.world
        paths = listed(store.all(), prefix)
        if not world.chance(store.faults.partial_list):
            return paths
        seen = [path for path in paths if not store.recent(path) or world.random.random() < 0.3]
        if len(seen) < len(paths):
            world.hits.add(PARTIAL_LIST)
        return seen

    def delete(self, path: str) -> None:
        self._begin("delete", path)
        store = self._store
        for found in [path, *store.below(path)]:
            if store.content(found) is not None:
                store.on_deleted(found)
                for files in (store.cached, store.unnamed, store.durable):
                    files.pop(found, None)  # type: ignore[attr-defined]
                store.world.log(f"  deleted {found}")

    def copy_from(self, path: str, source: Store, source_path: str) -> bool:
        return False

    def uri(self, path: str) -> str:
        return f"mem:///{path}"

    def below(self, path: str) -> Below:
        return Below(self, path)
