"""`JobPaths` formats every path in the store.

Invariant: all paths of an attempt contain its generation and attempt number, so two attempts never share a file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from engine.core.errors import StoreError
from engine.protocol.ids import AttemptId, SubtaskId
from engine.protocol.redistribution import Distribution


@dataclass(frozen=True)
class JobPaths:
    job: str

    def log_directory(self) -> str:
        return f"{self.job}/log"

    def log_record(self, number: int) -> str:
        return f"{self.job}/log/{number:010d}.json"

    def parse_log_record(self, path: str) -> int | None:
        """Returns the number of a record, or None for any other path: others may have put files there."""
        name = path.removeprefix(f"{self.log_directory()}/").removesuffix(".json")
        number = int(name) if name.isdecimal() else 0
        return number if path == self.log_record(number) else None

    def generation(self, generation: int) -> str:
        return f"{self.job}/gen-{generation:04d}"

    def checkpoint(self, generation: int, checkpoint: int) -> str:
        return f"{self.generation(generation)}/chk-{checkpoint:07d}"

    def attempt(self, attempt: AttemptId, checkpoint: int) -> str:
        return f"{self.checkpoint(attempt.generation, checkpoint)}/{attempt.attempt}"

    def copy(self, generation: int, checkpoint: int, owner: str) -> str:
        """Returns the folder of a snapshot that was copied from an older epoch, or from another job."""
        return f"{self.checkpoint(generation, checkpoint)}/copy-{_safe(owner)}"

    def state_file(
        self,
        attempt: AttemptId,
        checkpoint: int,
        uid: str,
        subtask: SubtaskId,
        name: str,
        distribution: Distribution = Distribution.KEYED,
        into: str = "",
    ) -> str:
        """Returns the path of a state file. It contains the distribution: keyed and operator state may share a name.

        `into`: the folder of the file; empty: that of the checkpoint.
        """
        kind = "" if distribution is Distribution.KEYED else f".{distribution.value}"
        folder = into or self.attempt(attempt, checkpoint)
        return f"{folder}/{_safe(uid)}.{subtask.index}.{_safe(name)}{kind}.arrow"

    def manifest(self, attempt: AttemptId, checkpoint: int) -> str:
        return f"{self.attempt(attempt, checkpoint)}/manifest.json"

    def savepoints(self) -> str:
        return f"{self.job}/savepoints"

    def savepoint(self, name: str) -> str:
        return f"{self.savepoints()}/{name}"

    def desired(self) -> str:
        """Returns the directory of what users last asked of each start, in a bucket."""
        return f"{self.job}/desired"

    def desired_of(self, launch_id: str) -> str:
        return f"{self.desired()}/{_safe(launch_id)}.json"

    def shared_launch(self) -> str:
        """Returns the path of the last start in a bucket; for a store in a directory it is in the run folder."""
        return f"{self.job}/launch.json"

    def launch(self) -> str:
        """Returns the path of the last start in a store that is a directory."""
        return f"{self.job}/run/launch.json"

    def nonces(self) -> str:
        """Returns the directory of what a slot reads to prove that it sees the store; in a bucket it is all of it."""
        return f"{self.job}/run"

    def nonce(self, name: str) -> str:
        return f"{self.nonces()}/nonce-{name}"

    def inputs(self) -> tuple[str, str]:
        """Returns the directories of what the job reads: listings and DataFrames of sources, and static tables."""
        return f"{self.job}/sources", f"{self.job}/static"

    def source_listing(self, uid: str) -> str:
        return f"{self.inputs()[0]}/{_safe(uid)}.json"

    def first_look(self, uid: str, attempt: AttemptId) -> str:
        """Returns the path of what a source that watches a table saw first, in an attempt that begins without epoch."""
        return f"{self.inputs()[0]}/{_safe(uid)}.look-{attempt}.json"

    def parse_first_look(self, uid: str, path: str) -> AttemptId | None:
        """Returns the attempt of a path that `first_look` made of this uid, or None for any other path."""
        prefix = f"{self.inputs()[0]}/{_safe(uid)}.look-"
        if not path.startswith(prefix):
            return None
        generation, attempt, _ = path.removeprefix(prefix).split(".")
        return AttemptId(int(generation), int(attempt))

    def dataframe(self, uid: str) -> str:
        return f"{self.inputs()[0]}/{_safe(uid)}"

    def static_tables(self, uid: str) -> str:
        return f"{self.inputs()[1]}/{_safe(uid)}"

    def history(self, name: str) -> str:
        return f"{self.job}/history/{name}"

    def audits(self) -> str:
        """Returns the directory of what audits of the running job have seen, with a directory for each table."""
        return f"{self.job}/audits"

    def audit(self, table: str) -> str:
        """`table`: the path of a table as its sink gives it. Two long paths never have the same directory."""
        digest = hashlib.sha256(table.encode()).hexdigest()[:12]
        return f"{self.audits()}/{_safe(table)[-80:].lstrip('-%')}-{digest}"

    def table(self, path: str) -> str:
        """Returns the path of a table whose sink has a relative path: it lies in the job's own directory."""
        return f"{self.job}/tables/{path}"

    def outbox(self, of: str) -> str:
        """Returns the directory in which rows wait until they are sent to an outside system, `of`."""
        return f"{self.job}/outbox/{_safe(of)}"

    @staticmethod
    def parse_checkpoint(path: str) -> tuple[int, int] | None:
        """Returns the (generation, checkpoint) of a path at or below `checkpoint()`, or None for any other path."""
        parts = path.split("/")
        if len(parts) < 3 or not parts[1].startswith("gen-") or not parts[2].startswith("chk-"):
            return None
        return int(parts[1][4:]), int(parts[2][4:])


def check_store_path(path: str) -> None:
    """Raises a StoreError unless a path is relative and made of plain names."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise StoreError(f"{path!r} is not a path in a store: write names with one slash between them, as in 'job/log'")


def _safe(name: str) -> str:
    """Escapes what is no letter, digit, dash or underscore, byte by byte, so that no two names become the same."""
    return "".join(c if c.isalnum() or c in "-_" else _escaped(c) for c in name)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02x}" for byte in character.encode(errors="surrogatepass"))
