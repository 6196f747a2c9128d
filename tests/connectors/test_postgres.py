"""PostgreSQL, written exactly once, against a real server.

Goal: each row is in the table once, whatever dies. Topology: a source with two splits → the sink.
Faults: every process dies at each step of the four verbs; a JobMaster sleeps in its transaction through its own
replacement; the server crashes in the middle of a transaction, has no free connection, no room, another password.
Checks: the rows of the table, and the marker.
"""

from __future__ import annotations

import datetime as dt
import decimal
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from engine.api import StreamEnvironment
from engine.connectors.postgres import AutoCommitPostgresSink, PostgresSink, PostgresTable
from engine.connectors.postgres import sink as sinks
from engine.connectors.postgres.committer import PostgresCommitter
from engine.connectors.postgres.session import connected
from engine.connectors.table import TableSink
from engine.core.errors import JobError, SchemaMismatch, StoreError, TargetTaken
from engine.core.paths import JobPaths
from engine.core.sinks import Guarantee, Sink
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, ManifestRef
from engine.testing import Checkpoint, Crash, JobFailed, ListSource, LocalRun, run
from tests.connectors.dying import Died, die_once
from tests.servers.postgres import PostgresServer, running

Job = Callable[[StreamEnvironment], None]
ALL = [1, 2, 3, 11, 12, 13]


@pytest.fixture
def server(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A database with an empty table, `orders`."""
    postgres_server.use(monkeypatch)
    postgres_server.sql("CREATE TABLE orders (n bigint, word text)")
    yield postgres_server
    postgres_server.sql("DROP SCHEMA public CASCADE")
    postgres_server.sql("CREATE SCHEMA public")


def split(*items: Any) -> list[Any]:
    return [{"n": item, "word": f"word {item}"} if isinstance(item, int) else item for item in items]


def two_splits() -> ListSource:
    return ListSource(split(1, Checkpoint(), 2, Checkpoint(), 3), split(11, Checkpoint(), 12, Checkpoint(), 13))


def writing(sink: Sink, source: ListSource, schema: str = "n long, word string") -> Job:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        env.from_source(source, schema, uid="orders").sink_to(sink, uid="out")

    return job


def numbers(server: PostgresServer) -> list[int]:
    return [n for (n,) in server.sql("SELECT n FROM orders ORDER BY n")]


def append(server: PostgresServer) -> PostgresSink:
    return PostgresSink(server.dsn, "orders")


def upsert(server: PostgresServer) -> PostgresSink:
    if not server.sql("SELECT 1 FROM pg_indexes WHERE tablename = 'orders'"):
        server.sql("ALTER TABLE orders ADD PRIMARY KEY (n)")
    return PostgresSink(server.dsn, "orders", key="n")


STEPS = {
    "begin": (sinks._PostgresWriter, "begin"),
    "pre_commit": (sinks._PostgresWriter, "pre_commit"),
    "persist": (sinks._Rows, "persist"),
    "check": (PostgresCommitter, "check"),
    "commit": (PostgresCommitter, "commit"),
    "mark": (PostgresCommitter, "_mark"),
    "write": (PostgresCommitter, "_write"),
}


@pytest.mark.promise("G4", "D11")
@pytest.mark.parametrize("make", [append, upsert])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_all_processes_die_at_any_step_of_the_four_verbs_and_each_row_is_there_once(
    server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[PostgresServer], PostgresSink],
    step: str,
    call: int,
    before: bool,
) -> None:
    source = two_splits()
    first = LocalRun(writing(make(server), source), 2, {})
    with monkeypatch.context() as patch, pytest.raises(Died):
        die_once(patch, *STEPS[step], call, before)
        first.run()
    done = run(writing(make(server), source), parallelism=2, after=first)
    assert numbers(server) == ALL
    assert not done.store.list("test/outbox"), "rows that are in the table do not wait any more"


@pytest.mark.promise("G4")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_slot_dies_and_the_job_goes_on_at_another_parallelism(server: PostgresServer, parallelism: int) -> None:
    source = ListSource(split(1, Checkpoint(), 2, Crash(), 3), split(11, Checkpoint(), 12, Crash(), 13))
    first = run(writing(append(server), source), parallelism=2, until=lambda run: run.epochs >= 1)
    done = run(writing(append(server), source), parallelism=parallelism, after=first)
    assert done.restarts >= 1
    assert numbers(server) == ALL


@pytest.mark.promise("G4")
def test_a_plain_auto_committing_sink_doubles_rows_after_a_restart(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter-example of the seeds: the rows since the last checkpoint are committed, and read again."""
    source = ListSource(split(1, Checkpoint(), 2, Checkpoint(), 3))
    sink = AutoCommitPostgresSink(server.dsn, "orders")
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    first = LocalRun(writing(sink, source), 1, {})
    with monkeypatch.context() as patch, pytest.raises(Died):
        die_once(patch, sinks._Rows, "persist", 2, before=False)
        first.run()
    run(writing(sink, source), after=first)
    assert numbers(server) == [1, 2, 2, 3]


@pytest.mark.promise("G4", "F2")
@pytest.mark.parametrize("step", ["_mark", "_write"])
def test_a_job_master_that_sleeps_in_its_transaction_through_its_own_replacement_is_fenced(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The zombie holds the marker of its epoch. Its successor ends the zombie's session and writes that epoch and all
    later ones. Then the zombie wakes up."""
    source = two_splits()
    first = LocalRun(writing(append(server), source), 2, {})
    real = getattr(PostgresCommitter, step)
    slept = []

    def asleep(*args: Any) -> Any:
        result = real(*args)
        if not slept:
            slept.append(step)
            monkeypatch.setattr(PostgresCommitter, step, real)
            assert run(writing(append(server), source), parallelism=2, after=first).restarts == 0
        return result

    monkeypatch.setattr(PostgresCommitter, step, asleep)
    with pytest.raises(JobFailed):
        first.run()
    assert slept and numbers(server) == ALL


@pytest.mark.promise("G4", "D11")
def test_an_epoch_that_is_in_the_table_is_not_written_again(server: PostgresServer) -> None:
    committer, done, _ = committed(server)
    ref = ManifestRef("", "", done.epochs, done.epochs)
    missing = Committable("out", 0, AttemptId(1, 1), 1, 1, {"name": "gone", "size": 1, "columns": ["n", "word"]})
    committer.commit(CommitPermit.issue(ref), [missing])
    assert numbers(server) == ALL


@pytest.mark.promise("G4", "D11")
def test_an_epoch_that_was_passed_over_can_not_be_written_any_more(server: PostgresServer) -> None:
    committer, done, job_id = committed(server)
    permit = CommitPermit.issue(ManifestRef("", "", done.epochs + 1, 1))
    committer.pass_over(permit)
    committer.pass_over(permit)
    assert server.sql("SELECT job, target, epoch FROM weir_epochs") == [(job_id, "orders", done.epochs + 1)]
    missing = Committable("out", 0, AttemptId(1, 1), 1, 1, {"name": "gone", "size": 1, "columns": ["n", "word"]})
    committer.commit(permit, [missing])


@pytest.mark.promise("G4")
def test_rows_that_are_gone_before_their_epoch_is_published_or_written_are_noticed(server: PostgresServer) -> None:
    committer, done, _ = committed(server)
    missing = Committable("out", 0, AttemptId(1, 1), 1, 1, {"name": "gone", "size": 1, "columns": ["n", "word"]})
    with pytest.raises(StoreError, match="is gone: was the store away when it was written"):
        committer.check([missing])
    permit = CommitPermit.issue(ManifestRef("", "", done.epochs + 1, 1))
    for _ in range(2):  # the marker of the first try is not in the database
        with pytest.raises(StoreError, match="is gone, and its epoch is published: bring it back"):
            committer.commit(permit, [missing])
    assert numbers(server) == ALL


def committed(server: PostgresServer) -> tuple[PostgresCommitter, LocalRun, str]:
    """A job that has ended, and its committer as its next JobMaster makes it."""
    done = run(writing(append(server), two_splits()), parallelism=2)
    committer = append(server).committer(done.store, JobPaths("test"))
    assert isinstance(committer, PostgresCommitter)
    ((job_id,),) = server.sql("SELECT job FROM weir_epochs")
    committer.claim(job_id, done.epochs + 1)
    return committer, done, job_id


@pytest.mark.promise("D11")
def test_a_table_that_is_ahead_of_the_log_of_its_job_is_refused(server: PostgresServer) -> None:
    _, done, job_id = committed(server)
    committer = append(server).committer(done.store, JobPaths("test"))
    with pytest.raises(TargetTaken, match="an older copy of the job's folder was brought back"):
        committer.claim(job_id, done.epochs)


@pytest.mark.promise("G4")
def test_a_commit_counts_when_the_disk_has_it_whatever_is_usual_in_the_database(server: PostgresServer) -> None:
    """Otherwise a server that crashes could forget epochs that nobody commits again."""
    server.sql("ALTER ROLE weir SET synchronous_commit = off")
    try:
        with connected(f"{server.dsn} options='-c work_mem=5MB'", "t", "weir") as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
            assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)
            assert connection.execute("SHOW lock_timeout").fetchone() == ("30s",)
    finally:
        server.sql("ALTER ROLE weir RESET synchronous_commit")


@pytest.mark.promise("G4")
def test_the_last_row_of_a_key_stays(server: PostgresServer) -> None:
    server.sql("DROP TABLE orders")
    server.sql("CREATE TABLE orders (n bigint, word text, note text DEFAULT 'by hand', PRIMARY KEY (n))")
    server.sql("INSERT INTO orders VALUES (2, 'before', 'kept')")
    items = [{"n": 1, "word": "a"}, {"n": 2, "word": "b"}, {"n": 1, "word": "c"}, Checkpoint(), {"n": 2, "word": None}]
    run(writing(PostgresSink(server.dsn, "public.orders", key=["n"]), ListSource(items)))
    assert server.sql("SELECT * FROM orders ORDER BY n") == [(1, "c", "by hand"), (2, None, "kept")]


def test_an_upsert_of_keys_alone_keeps_each_once(server: PostgresServer) -> None:
    server.sql("DROP TABLE orders")
    server.sql("CREATE TABLE orders (n bigint PRIMARY KEY)")
    items = [{"n": 1}, {"n": 1}, Checkpoint(), {"n": 1}, {"n": 2}]
    run(writing(PostgresSink(server.dsn, "orders", key="n"), ListSource(items), "n long"))
    assert numbers(server) == [1, 2]


def test_values_arrive_as_they_are(server: PostgresServer) -> None:
    server.sql("DROP TABLE orders")
    server.sql(
        'CREATE TABLE orders (n bigint, "a ""b"" c" text, yes boolean, real double precision, price numeric, '
        "at timestamptz, local timestamp, day date, raw bytea)"
    )
    schema = (
        "n long, word string, yes boolean, real double, price decimal(10,2), at timestamp, local timestamp_ntz, "
        "day date, raw binary"
    )
    moment = dt.datetime(2026, 3, 4, 5, 6, 7, 89)
    odd = {
        "n": -(2**63),
        "word": 'comma, "quote", \\ backslash,\nline, tab\t, ü, \\N, ',
        "yes": False,
        "real": float("inf"),
        "price": decimal.Decimal("-12345678.90"),
        "at": moment.replace(tzinfo=dt.UTC),
        "local": moment,
        "day": dt.date(1969, 12, 31),
        "raw": b"\x00\xff\\",
    }
    empty = {**dict.fromkeys(odd), "n": 1, "word": "", "raw": b""}
    nothing = dict.fromkeys(odd)

    def job(env: StreamEnvironment) -> None:
        rows = env.from_source(ListSource([odd, empty, nothing]), schema, uid="rows")
        rows.map_batches(renamed, schema=schema.replace("word", '`a "b" c`')).sink_to(
            PostgresSink(server.dsn, "orders"), uid="out"
        )

    def renamed(batch: Any) -> Any:
        return batch.rename_columns([name if name != "word" else 'a "b" c' for name in batch.schema.names])

    run(job)
    found = server.sql("SELECT * FROM orders ORDER BY n")
    assert [list(row) for row in found] == [[*odd.values()], [*empty.values()], [*nothing.values()]]


# --- lookups ---


def test_a_stream_is_joined_with_a_table(server: PostgresServer) -> None:
    server.sql(
        "CREATE TABLE cities (n integer, place text, country text, open boolean, since timestamptz, share numeric)"
    )
    since = dt.datetime(2020, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)
    rows: list[tuple[Any, ...]] = [
        (1, 'Be"rn, \n', "CH", True, since, decimal.Decimal("1.50")),
        (2, "", None, False, None, None),
        (2, None, "FR", None, since, decimal.Decimal("-2.25")),
    ]
    for row in rows:
        server.sql("INSERT INTO cities VALUES (%s, %s, %s, %s, %s, %s)", *row)
    cities = PostgresTable(
        server.dsn,
        "public.cities",
        "n long, place string, country string, open boolean, since timestamp, share decimal(10,2)",
    )
    source = ListSource([{"n": n, "word": str(n)} for n in (1, 2, 3)])

    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(source, "n long, word string", uid="orders")
        stream.join_lookup(cities, on="n", how="left", uid="cities").sink_to(TableSink("out"), uid="out")

    found = [tuple(row.values()) for row in run(job).rows("out")]
    assert sorted(found, key=str) == sorted(
        [*((row[0], str(row[0]), *row[1:]) for row in rows), (3, "3", None, None, None, None, None)], key=str
    )


def test_a_lookup_by_several_columns_asks_for_pairs(server: PostgresServer) -> None:
    server.sql("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (1, 'b')")
    table = PostgresTable(server.dsn, "orders", "n long, word string")
    server.sql("ALTER TABLE orders ALTER word TYPE varchar(9)")
    keys = pa.record_batch({"word": ["a", "b", "c"], "n": [1, 1, 2]})
    assert sorted(table.fetch(keys).to_pylist(), key=str) == [{"n": 1, "word": "a"}, {"n": 1, "word": "b"}]
    assert table.fetch(keys.slice(2)).num_rows == 0


def test_a_lookup_table_that_is_not_there_is_named(server: PostgresServer) -> None:
    with pytest.raises(
        SchemaMismatch, match=r'the Postgres table gone of .* can.t be read: relation "gone" does not exist'
    ):
        PostgresTable(server.dsn, "gone", "n long").fetch(pa.record_batch({"n": [1]}))
    with pytest.raises(JobError, match="can't read the column tags as list"):
        PostgresTable(server.dsn, "orders", "tags array<string>")


# --- faults of the server ---


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server that a test may break."""
    with running() as server:
        server.use(monkeypatch)
        server.sql("CREATE TABLE orders (n bigint, word text)")
        yield server


@pytest.mark.promise("G4", "H8")
def test_a_server_that_crashes_in_the_middle_of_a_transaction_gets_each_row_once(
    own: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PostgresCommitter._write
    crashes = 0

    def write(self: PostgresCommitter, connection: Any, committables: Sequence[Committable]) -> None:
        nonlocal crashes
        real(self, connection, committables)
        crashes += 1
        if crashes == 1:
            own.stop()
            own.start()

    monkeypatch.setattr(PostgresCommitter, "_write", write)
    done = run(writing(append(own), two_splits()), parallelism=2)
    assert done.restarts == 1 and crashes > 1
    assert numbers(own) == ALL


@pytest.mark.promise("G4", "H8")
def test_an_answer_that_is_lost_after_the_server_has_committed_doubles_nothing(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, write = psycopg.Connection.commit, PostgresCommitter._write
    steps: list[str] = []

    def writing_rows(self: PostgresCommitter, *args: Any) -> None:
        write(self, *args)
        steps.append("written")

    def losing(self: psycopg.Connection[Any]) -> None:
        commit(self)
        if steps == ["written"]:
            steps.append("lost")
            raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(PostgresCommitter, "_write", writing_rows)
    monkeypatch.setattr(psycopg.Connection, "commit", losing)
    done = run(writing(append(server), two_splits()), parallelism=2)
    assert steps[1] == "lost" and done.restarts == 1
    assert numbers(server) == ALL


@pytest.mark.promise("G4", "H8")
def test_a_server_without_a_free_connection_is_waited_for(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.sql("CREATE ROLE clerk LOGIN PASSWORD 'secret' CONNECTION LIMIT 1")
    server.sql("GRANT ALL ON SCHEMA public TO clerk")
    server.sql("GRANT ALL ON orders TO clerk")
    monkeypatch.setenv("PGPASSWORD", "secret")
    dsn = server.dsn.replace("user=weir", "user=clerk")
    real = PostgresCommitter.commit
    taken: list[psycopg.Connection[Any]] = []

    def commit(self: PostgresCommitter, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        if not taken:
            taken.append(psycopg.connect(dsn))
            try:
                real(self, permit, committables)
            finally:
                taken[0].close()
                wait_until(
                    lambda: server.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'clerk'") == [(0,)]
                )
        real(self, permit, committables)

    monkeypatch.setattr(PostgresCommitter, "commit", commit)
    try:
        done = run(writing(PostgresSink(dsn, "orders"), two_splits()), parallelism=2)
        assert done.restarts == 1
        assert any("too many connections for role" in str(event) for event in done.events)
        assert numbers(server) == ALL
    finally:
        server.sql("DROP OWNED BY clerk")
        server.sql("DROP ROLE clerk")


def wait_until(said: Callable[[], bool]) -> None:
    for _ in range(1000):
        if said():
            return
    raise AssertionError("it did not become true")


@pytest.mark.promise("G4", "H8")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_server_whose_disk_is_full_gets_each_row_once_when_it_has_room(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is in a tablespace on a disk of 8 MB. Somebody fills it before a commit, and makes room after it."""
    with tempfile.TemporaryDirectory(prefix="weir-disk-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
        shutil.chown(folder, "postgres")
        try:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
            server.sql("DROP TABLE orders")
            server.sql("CREATE TABLE orders (n bigint, word text) TABLESPACE small")
            items = [{"n": n, "word": "x" * 1000} for n in range(3000)]
            real = PostgresCommitter._write
            full = []

            def write(self: PostgresCommitter, *args: Any) -> None:
                ballast = Path(folder, "ballast")
                if not full:
                    full.append(1)
                    ballast.write_bytes(bytes(6 << 20))
                else:
                    ballast.unlink(missing_ok=True)
                real(self, *args)

            monkeypatch.setattr(PostgresCommitter, "_write", write)
            done = run(writing(append(server), ListSource(items)))
            assert done.restarts == 1
            assert any("No space left on device" in str(event) for event in done.events)
            assert numbers(server) == list(range(3000))
            server.sql("DROP TABLE orders")
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("DROP TABLESPACE small")
        finally:
            subprocess.run(["umount", folder], check=True)


# --- what does not fit ---


@pytest.mark.promise("G4")
def test_wrong_credentials_are_an_error_that_says_what_to_look_at(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong")
    committer = append(server).committer(LocalRun(writing(append(server), two_splits()), 1, {}).store, JobPaths("test"))
    with pytest.raises(StoreError) as caught:
        committer.claim("1d", 1)
    said = str(caught.value)
    assert said.startswith(f"the Postgres table orders of postgres at 127.0.0.1:{server.port}: ")
    assert "password authentication failed" in said and "PGPASSWORD" in said and "wrong" not in said


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (None, r'does not exist: create it, as in\nCREATE TABLE … \("n" bigint, "word" text\);'),
        ("n bigint", r"has no column word: leave it out .* or add it, as in\nALTER TABLE … ADD COLUMN \"word\" text;"),
        (
            "n integer, word text",
            "the column n of .* is integer, which does not hold every int64: .* make the column bigint",
        ),
        ("n text, word text", "the column n of .* is text, which does not hold every int64"),
    ],
)
def test_a_table_into_which_the_rows_do_not_fit_ends_the_job_before_anything_is_written(
    server: PostgresServer, table: str | None, said: str
) -> None:
    server.sql("DROP TABLE orders")
    if table is not None:
        server.sql(f"CREATE TABLE orders ({table})")
    with pytest.raises(JobFailed, match=said):
        run(writing(append(server), two_splits()))


def test_a_row_that_the_table_refuses_ends_the_job_and_is_written_when_the_table_takes_it(
    server: PostgresServer,
) -> None:
    server.sql("ALTER TABLE orders ADD CHECK (n <> 2)")
    source = two_splits()
    first = LocalRun(writing(append(server), source), 2, {})
    with pytest.raises(JobFailed, match=r"has refused the rows: .*orders_n_check.* Change the table so that they fit"):
        first.run()
    assert numbers(server) == [1, 11]
    server.sql("ALTER TABLE orders DROP CONSTRAINT orders_n_check")
    run(writing(append(server), source), parallelism=2, after=first)
    assert numbers(server) == ALL


def test_a_text_that_postgres_can_not_store_is_named(server: PostgresServer) -> None:
    with pytest.raises(JobFailed, match=r"the column word has a text with the character U\+0000"):
        run(writing(append(server), ListSource([{"n": 1, "word": "a\0b"}])))


def test_nested_columns_and_unknown_keys_are_refused(server: PostgresServer) -> None:
    with pytest.raises(JobFailed, match="can't store the column tags of type list"):
        run(writing(append(server), ListSource([{"n": 1, "tags": ["a"]}]), "n long, tags array<string>"))
    with pytest.raises(JobFailed, match=r"the key 'k' of .* is no column of the rows: n, word"):
        run(writing(PostgresSink(server.dsn, "orders", key="k"), two_splits()))


def test_a_password_in_the_address_is_never_shown() -> None:
    target = PostgresSink("postgresql://clerk:secret@db.example:5433/orders", "orders").target
    assert target == "the Postgres table orders of orders at db.example:5433"


@pytest.mark.parametrize("address", ["db.example", "password='secret"])
def test_an_address_that_can_not_be_read_is_refused_without_showing_it(address: str) -> None:
    with pytest.raises(JobError, match=r"write one such as 'host=db\.example dbname=orders'") as caught:
        run(writing(PostgresSink(address, "orders"), two_splits()))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("table", ["", "a.b.c", "a.", None])
def test_what_is_no_name_of_a_table_is_refused(table: Any) -> None:
    with pytest.raises(ValueError, match="is no name of a table: write one such as"):
        PostgresSink("dbname=orders", table)


def test_a_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(JobError, match=r"PostgresSink needs the library psycopg, .*pip install 'weir\[postgres\]'"):
        PostgresSink("dbname=orders", "orders")
