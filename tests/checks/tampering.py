"""Ways to tamper with a finished drill (tests/checks/small.py), each as somebody with access to its folder could."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from checks.ledger import LedgerFile, Seal
from tests.checks.small import PATHS, SPEC, Table, changed

Tamper = Callable[[Path], None]


def tables(drill: Path) -> tuple[Table, Table]:
    return Table(drill, SPEC.rows), Table(drill, SPEC.aggregates)


def stray_file(drill: Path) -> None:
    views, _ = tables(drill)
    shutil.copy(views.file(3), views.folder / "part-00000-copied.parquet")


def log_record_deleted(drill: Path) -> None:
    (drill / PATHS.log_record(6)).unlink()  # the first record is a fence


def digest_edited(drill: Path) -> None:
    """Changes the digest of the aggregates, which no equation compares with another."""
    edit_totals(drill, 8, {"digest:out": 1})


def inner_edge(drill: Path) -> None:
    edit_totals(drill, 5, {"sent:pv.combine->pv": 7, "received:pv.combine->pv": 7})


def source_edge(drill: Path) -> None:
    edit_totals(drill, 5, {"sent:views->raw": -7, "received:views->raw": -7})


def edit_totals(drill: Path, epoch: int, by: dict[str, int]) -> None:
    """Changes the totals of one epoch in the history."""
    events = drill / PATHS.history("events.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    for event in lines:
        if event["kind"] == "completed" and event["epoch"] == epoch:
            for name, more in by.items():
                assert name in event["ledger"]
                event["ledger"][name] += more
    events.write_text("".join(json.dumps(event) + "\n" for event in lines))


def table_and_ledger(drill: Path) -> None:
    """Changes a record in the table and in the ledger, and seals the ledger again with a plain checksum."""
    views, _ = tables(drill)
    views.rewrite(4, changed(7, "bytes", 1))
    number = pq.read_table(views.file(4)).column("view_id")[7].as_py()
    edit_ledger(drill, changed(number, "bytes", 1))


def edit_ledger(drill: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    import xxhash

    path, seal_path = drill / "ledger" / "records-00000.parquet", drill / "ledger" / "_seal.json"
    rows = change(pq.read_table(path))
    pq.write_table(rows, path, compression="zstd")
    seal = msgspec.json.decode(seal_path.read_bytes(), type=Seal)
    file = LedgerFile(path.name, rows.num_rows, xxhash.xxh3_128_hexdigest(path.read_bytes()))
    seal_path.write_bytes(msgspec.json.encode(Seal(seal.job, rows.num_rows, [file])))


def rows_swapped(drill: Path) -> None:
    """Puts a row of epoch 3 in the place of one of epoch 7, and the other way round: every row is still there once."""
    views, _ = tables(drill)
    third, seventh = (pq.read_table(views.file(epoch)).slice(5, 1) for epoch in (3, 7))
    views.rewrite(3, lambda rows: pa.concat_tables([rows.slice(0, 5), seventh, rows.slice(6)]))
    views.rewrite(7, lambda rows: pa.concat_tables([rows.slice(0, 5), third, rows.slice(6)]))


def extra_column(drill: Path) -> None:
    views, _ = tables(drill)
    views.rewrite(4, lambda rows: rows.append_column("note", pa.array(["x"] * rows.num_rows)))


def reads_removed(drill: Path) -> None:
    (drill / "reads.jsonl").unlink()


def faults_removed(drill: Path) -> None:
    edit_json(drill / "drill.json", lambda result: result | {"faults": []})


def edit_json(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def file_missing(drill: Path) -> None:
    tables(drill)[0].file(4).unlink()


def file_truncated(drill: Path) -> None:
    path = tables(drill)[0].file(4)
    path.write_bytes(path.read_bytes()[:-20])


def table_record_missing(drill: Path) -> None:
    """Deletes a record behind the last compact one: Spark can't read the table any more."""
    (tables(drill)[0].folder / "_spark_metadata" / "10").unlink()


def entry_elsewhere(drill: Path) -> None:
    """Lets readers read one file of the table from another folder."""
    views, _ = tables(drill)
    name = views.file(4).name
    views.change_entries(lambda entry: entry | {"path": f"file:///lake/{name}"} if name in entry["path"] else entry)


def table_elsewhere(drill: Path) -> None:
    """Lets readers read all of the table from another folder, as if this were a copy of it."""
    tables(drill)[0].change_entries(lambda entry: entry | {"path": f"file:///lake/{entry['path'].rpartition('/')[2]}"})


def history_cut(drill: Path) -> None:
    events = drill / PATHS.history("events.jsonl")
    kept = [line for line in events.read_text().splitlines() if '"epoch":5,' not in line]
    events.write_text("\n".join(kept) + "\n")


def cause_removed(drill: Path) -> None:
    events = drill / PATHS.history("events.jsonl")
    kept = [line for line in events.read_text().splitlines() if "attempt_failed" not in line]
    events.write_text("\n".join(kept) + "\n")


def seal_removed(drill: Path) -> None:
    (drill / "seal.json").unlink()


def sealed_with_another_key(drill: Path) -> None:
    """Edits the totals and seals everything again, with a key of one's own."""
    from checks.seal import DrillSeal

    inner_edge(drill)
    path = drill / "seal.json"
    seal = msgspec.json.decode(path.read_bytes(), type=DrillSeal)
    for name in ("sent:pv.combine->pv", "received:pv.combine->pv"):
        seal.epochs[4][name] += 7
    path.write_bytes(msgspec.json.encode(seal.signed(b"another key")))
