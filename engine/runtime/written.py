"""Versions of data that Spark writes into the store. A version is a record that names the folder of its files.

Invariant: a record is created if it is absent and never changes, and every write has a folder of its own. So a
JobMaster that has been replaced can't change what its successor's slots read. A folder that no record names, such as
that of a JobMaster which died while it wrote, is never read.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.core.errors import StoreError, WeirError
from engine.core.ports import Store
from engine.protocol.epoch_records import Created


class _Record(msgspec.Struct):
    folder: str


@dataclass(frozen=True)
class Versions:
    """The versions below the directory `base`."""

    store: Store
    base: str

    def known(self) -> list[int]:
        """Returns the versions that can be read, oldest first."""
        names = [path.removeprefix(f"{self.base}/") for path in self.store.list(self.base)]
        return sorted(int(name.removesuffix(".json")) for name in names if "/" not in name)

    def folder(self, version: int) -> str:
        """Returns the folder of a version. Raises FileNotFoundError if there is no such version."""
        path = self._record(version)
        data = self.store.read(path)
        try:
            record = msgspec.json.decode(data, type=_Record)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WeirError(
                f"{path} ({len(data)} bytes) is not what was written ({error}). It names the folder of a DataFrame "
                "that the job reads. Bring it back from a backup, or from the folder inputs/ of a savepoint of this job"
            ) from error
        return f"{self.base}/{record.folder}"

    def publish(self, version: int, folder: str) -> bool:
        """Makes a written folder this version; if the version exists already, deletes the folder and returns False."""
        self.store.sync(self.store.list(folder))  # Spark syncs nothing, and the record vouches for these files
        data = msgspec.json.encode(_Record(folder.removeprefix(f"{self.base}/")))
        created = self.store.create(self._record(version), data) is Created.CREATED
        if not created:
            try:
                created = self.folder(version) == folder  # an unknown outcome, or our own record
            except FileNotFoundError as error:
                raise StoreError(f"the store did not say whether {self._record(version)} was created") from error
        if not created:
            self.store.delete(folder)
        return created

    def delete(self, version: int) -> None:
        folder = self.folder(version)
        self.store.delete(self._record(version))  # first, so that no slot starts to read this version
        self.store.delete(folder)

    def _record(self, version: int) -> str:
        return f"{self.base}/{version}.json"
