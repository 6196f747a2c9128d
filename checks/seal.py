"""The keyed seal of a drill: what its ledger, its reads, its result and the job's history were when it ended.

Whoever changes the evidence can't seal it again without the key, which is not in the store: it is the text of
WEIR_AUDIT_KEY, or the file `audit.key` in the user's state folder, which the first drill makes. The files of the tables
are sealed too; what is wrong with their rows, the audit finds by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import msgspec

from checks.facts import EPOCHS, EVIDENCE, Fact
from checks.faults import happened
from checks.history import KEPT, EpochTotals, recorded_epochs
from checks.spec import DrillSpec
from checks.tablelog import epoch_rows
from engine.core.errors import WeirError
from engine.core.paths import JobPaths
from engine.host.places import state_folder
from engine.protocol.epoch_records import LogRecord

KEY = "WEIR_AUDIT_KEY"
SEAL = "seal.json"
RESULT = "drill.json"
READS = "reads.jsonl"


class NoKey(WeirError):
    """The key of the seals is not on this machine."""


class SealedFile(msgspec.Struct, frozen=True):
    """A file by its path in the drill's folder. `epoch`: that of a file of a table or of the epoch log, else 0."""

    path: str
    checksum: str
    epoch: int = 0
    table: str = ""


class DrillSeal(msgspec.Struct, frozen=True):
    """`folder` is where the drill ran. `epochs` has the ledger's totals after each epoch, `failures` a checksum of the
    causes of all restarts."""

    job: str
    folder: str
    records: int
    files: list[SealedFile]
    epochs: list[dict[str, int]]
    failures: str
    mac: str = ""

    def signed(self, key: bytes) -> DrillSeal:
        return msgspec.structs.replace(self, mac=self._mac(key))

    def is_of(self, key: bytes) -> bool:
        return hmac.compare_digest(self.mac, self._mac(key))

    def _mac(self, key: bytes) -> str:
        plain = msgspec.json.encode(msgspec.structs.replace(self, mac=""), order="deterministic")
        return hmac.new(key, plain, hashlib.sha256).hexdigest()


def audit_key(*, make: bool = False) -> bytes:
    """Returns the key of this machine's seals. With `make` it makes one if there is none. Raises NoKey."""
    if text := os.environ.get(KEY):
        return text.encode()
    path = state_folder() / "audit.key"
    try:
        if make and not path.exists():
            _make_key(path)
        return path.read_bytes()
    except FileNotFoundError:
        raise NoKey(
            f"the seal can't be checked: there is no key in {path}. If the drill ran on another machine or as another "
            f"user, set {KEY} to the content of that file there"
        ) from None
    except OSError as error:
        raise NoKey(f"the key of the seals, {path}, can't be used: {error}. Or set {KEY} to a secret text") from error


def _make_key(path: Path) -> None:
    """Makes the whole file at once: two drills may begin at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()


def seal_drill(spec: DrillSpec, folder: Path, records: int, epochs: list[EpochTotals], result: bytes) -> None:
    """Seals a drill that has ended. `result` is what will be in its `drill.json`, which is written after the seal."""
    files = [SealedFile(path, _checksum(folder / path), _epoch(folder / path)) for path in evidence_files(spec, folder)]
    files.append(SealedFile(RESULT, hashlib.sha256(result).hexdigest()))
    for table in spec.tables:
        place = JobPaths(spec.job).table(table.name)
        born = {part.file: part.epoch for part in epoch_rows(folder / place)}
        there = sorted(name for name in born if (folder / place / name).is_file())
        files += [SealedFile(f"{place}/{n}", _checksum(folder / place / n), born[n], table.name) for n in there]
    totals = [one.totals for one in epochs]
    seal = DrillSeal(spec.job, str(folder.absolute()), records, files, totals, _failures(spec, folder)).signed(
        audit_key(make=True)
    )
    draft = folder / f".{SEAL}"
    draft.write_bytes(msgspec.json.encode(seal))
    draft.replace(folder / SEAL)


def evidence_files(spec: DrillSpec, folder: Path) -> list[str]:
    """Returns the files that are evidence beside the drill's result: ledger, reads, epoch log; not the tables."""
    log = folder / JobPaths(spec.job).log_directory()
    found = [folder / READS, folder / KEPT, *(folder / "ledger").glob("*"), *log.glob("*")]
    return sorted(path.relative_to(folder).as_posix() for path in found if path.is_file())


def read_seal(folder: Path) -> DrillSeal | None:
    """Returns the seal as it is, whoever made it; None if there is none that can be read."""
    try:
        return msgspec.json.decode((folder / SEAL).read_bytes(), type=DrillSeal)
    except (OSError, msgspec.MsgspecError):
        return None


def seal_facts(spec: DrillSpec, folder: Path) -> Iterator[Fact]:
    """Compares the evidence with its seal. Raises NoKey if the key is not here."""
    if not (folder / SEAL).exists():
        yield _fact(SEAL, "the seal of the drill", "missing")
        return
    seal = read_seal(folder)
    if seal is None or not seal.is_of(audit_key()):
        other = f"changed, or made with another key than this machine's (if it was copied from another, set {KEY})"
        yield _fact(SEAL, "made by the drill", other)
        return
    yield _fact(SEAL, "made by the drill", "made by the drill" if seal.job == spec.job else f"of job {seal.job!r}")
    sealed = {file.path: file for file in seal.files}
    for file in seal.files:
        path = folder / file.path
        state = "missing" if not path.is_file() else "as sealed"
        if state == "as sealed" and _checksum(path) != file.checksum:
            state = "changed"
        if not file.table:
            yield _fact(file.path, "as sealed", state, file.epoch or None)
        elif state != "missing":  # if readers need it, it is missed where the table is read
            yield Fact(EPOCHS, file.table, file.epoch, path.name, "as sealed", state)
    for name in evidence_files(spec, folder):
        if name not in sealed:
            yield _fact(name, "not there when the drill ended", "there", _epoch(folder / name) or None)
    yield from _totals(seal, recorded_epochs(folder, spec.job))
    causes = "as sealed" if _failures(spec, folder) == seal.failures else "changed"
    yield _fact("the causes of restarts in the history", "as sealed", causes)


def _totals(seal: DrillSeal, found: dict[int, EpochTotals]) -> Iterator[Fact]:
    for epoch, totals in enumerate(seal.epochs, 1):
        if epoch not in found:
            yield _fact("the history's record of this epoch", "there", "missing", epoch)
            continue
        now = found[epoch].totals
        changed = [name for name in sorted({*totals, *now}) if totals.get(name) != now.get(name)]
        if not changed:
            yield _fact("counters in the history that were changed", "0", "0", epoch)
        for name in changed:
            yield _fact(f"total of {name}", str(totals.get(name)), str(now.get(name)), epoch)
    for epoch in sorted(set(found) - set(range(1, len(seal.epochs) + 1))):
        yield _fact("the history's record of this epoch", "none", "there", epoch)


def _fact(what: str, expected: str, found: str, epoch: int | None = None) -> Fact:
    return Fact(EVIDENCE, "", epoch, what, expected, found)


def _failures(spec: DrillSpec, folder: Path) -> str:
    return hashlib.sha256(msgspec.json.encode(happened(folder, spec.job))).hexdigest()


def _epoch(path: Path) -> int:
    """Returns the epoch of a record of the epoch log; 0 for any other file, and for a fence."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=LogRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return 0
    return record.newest.epoch if record.newest is not None else 0


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
