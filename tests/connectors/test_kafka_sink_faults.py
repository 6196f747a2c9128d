"""The Kafka sink while brokers and processes die: exact results in the topic.

Topology: a committer, as the JobMaster has it, in front of a broker of its own, partly through a TCP proxy. Faults: the
broker is killed between a transaction's commit and its answer; a producer sleeps (SIGSTOP) inside a transaction, is
replaced, and wakes up. Checks: each row is in the topic once; a zombie adds nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from engine.connectors.kafka import KafkaSink, client, producing, transactions
from engine.connectors.kafka.committer import KafkaCommitter
from engine.connectors.kafka.producing import KafkaAway
from engine.core.paths import JobPaths
from engine.core.sinks import WriterContext
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, ManifestRef
from engine.store.directory import DirectoryStore
from tests.connectors import kafka_topics as topics
from tests.servers.kafka import Broker, running
from tests.servers.tcp_proxy import TcpProxy, kafka_request

pytestmark = pytest.mark.promise("G3", "D11")

JOB_ID = "1d"
PATHS = JobPaths("job")
SCHEMA = pa.schema([("n", pa.int64())])
END_TXN = 26


def permit(epoch: int) -> CommitPermit:
    return CommitPermit.issue(ManifestRef(f"job/gen-0001/chk-{epoch:07d}/1/manifest.json", "", epoch, epoch))


def committable(store: DirectoryStore, sink: KafkaSink, epoch: int, numbers: list[int]) -> Committable:
    """Pre-commits rows as a slot does."""
    attempt = AttemptId(1, epoch)
    writer = sink.writer(WriterContext(0, attempt, store, PATHS, SCHEMA, JOB_ID))
    writer.begin()
    writer.write(pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA))
    piece = writer.pre_commit()
    assert piece is not None
    return Committable("out", 0, attempt, epoch, 1, piece.persist())


def committer(store: DirectoryStore, address: str, topic: str) -> KafkaCommitter:
    made = KafkaSink(topic, servers=address).committer(store, PATHS)
    assert isinstance(made, KafkaCommitter)
    return made


def seen(broker: Broker, topic: str) -> list[int]:
    return [json.loads(value)["n"] for value in topics.values(broker, topic)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits seconds, not a minute, for brokers that are gone."""
    monkeypatch.setattr(transactions, "ANSWER_S", 2.0)
    monkeypatch.setattr(transactions, "PATIENCE_S", 2.0)
    monkeypatch.setattr(producing, "PATIENCE_S", 2.0)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, TcpProxy]]:
    """A broker that clients reach through a proxy."""
    with TcpProxy().running() as proxy, running(tmp_path_factory.mktemp("kafka"), advertised=proxy.port) as broker:
        proxy.server_port = broker.port
        yield broker, proxy


@pytest.mark.parametrize("what", ["killed", "stopped"])
def test_a_broker_that_dies_between_the_commit_and_its_answer_doubles_nothing(
    behind: tuple[Broker, TcpProxy], topic: str, tmp_path: Path, what: str
) -> None:
    """The transaction is committed, and the answer is swallowed; then the broker is killed, or stopped for a while."""
    broker, proxy = behind
    store = DirectoryStore(tmp_path)
    topics.create(broker, topic)
    sink = KafkaSink(topic, servers=broker.address)
    first, second = committable(store, sink, 1, [1, 2]), committable(store, sink, 2, [3])
    of = committer(store, broker.address, topic)
    of.claim(JOB_ID, 1)
    of.commit(permit(1), [first])

    proxy.swallowed.clear()
    proxy.swallow = kafka_request(END_TXN)

    def fault() -> None:
        assert proxy.swallowed.wait(30)
        broker.kill() if what == "killed" else broker.pause()

    breaking = threading.Thread(target=fault)
    breaking.start()
    with pytest.raises(KafkaAway):
        of.commit(permit(2), [second])
    breaking.join()
    proxy.heal()
    broker.start() if what == "killed" else broker.resume()

    for attempt in range(2):  # the job restarts its attempt, and later its JobMaster
        again = of if attempt == 0 else committer(store, broker.address, topic)
        claim_patiently(again, 3)
        again.commit(permit(2), [second])
        assert seen(broker, topic) == [1, 2, 3]


def claim_patiently(of: KafkaCommitter, next_epoch: int) -> None:
    """Claims as the JobMaster does: again and again while nobody answers."""
    for _ in range(60):
        try:
            of.claim(JOB_ID, next_epoch)
        except client.KafkaAway:
            continue
        return
    raise AssertionError("the broker does not come back")


ZOMBIE = """
import sys
from tests.connectors import test_kafka_sink_faults as faults
faults.sleep_in_transaction(*sys.argv[1:])
"""


def sleep_in_transaction(address: str, topic: str, root: str) -> None:
    """A JobMaster that stops itself before it commits its transaction, and says how the commit went when it wakes."""
    store = DirectoryStore(Path(root))
    of = committer(store, address, topic)
    of.claim(JOB_ID, 1)
    assert of._target is not None
    commit = of._target.commit

    def sleep_then_commit() -> None:
        of._target._sending.wait()  # type: ignore[union-attr]
        print("asleep", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        commit()

    of._target.commit = sleep_then_commit  # type: ignore[method-assign]
    one = committable(store, KafkaSink(topic, servers=address), 1, [1, 2])
    try:
        of.commit(permit(1), [one])
    except KafkaAway as error:
        print("refused", error, flush=True)
    else:
        print("committed", flush=True)


def test_a_zombie_that_sleeps_inside_a_transaction_is_fenced(kafka: Broker, topic: str, tmp_path: Path) -> None:
    """It has sent its rows and not committed them. Its successor sends the same epoch; then the zombie wakes up."""
    topics.create(kafka, topic)
    store = DirectoryStore(tmp_path)
    zombie = subprocess.Popen(
        [sys.executable, "-c", ZOMBIE, kafka.address, topic, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert zombie.stdout is not None
        assert zombie.stdout.readline() == "asleep\n"
        os.waitpid(zombie.pid, os.WUNTRACED)
        again = committer(store, kafka.address, topic)
        again.claim(JOB_ID, 2)
        again.commit(permit(1), [committable(store, KafkaSink(topic, servers=kafka.address), 1, [1, 2])])
        assert seen(kafka, topic) == [1, 2]
        os.kill(zombie.pid, signal.SIGCONT)
        assert zombie.stdout.readline().startswith("refused")
        zombie.wait()
    finally:
        zombie.kill()
        zombie.wait()
    assert seen(kafka, topic) == [1, 2]


def test_no_transaction_is_open_between_checkpoints(kafka: Broker, topic: str, tmp_path: Path) -> None:
    """What other producers write behind an epoch is seen at once: an open transaction would hide it."""
    topics.create(kafka, topic)
    store = DirectoryStore(tmp_path)
    of = committer(store, kafka.address, topic)
    of.claim(JOB_ID, 1)
    of.commit(permit(1), [committable(store, KafkaSink(topic, servers=kafka.address), 1, [1])])
    topics.put(kafka, topic, [b'{"n": 2}'])
    assert seen(kafka, topic) == [1, 2]
    assert b"weir-1d-" in topics.records(kafka, "weir-markers")[-1].key()


class Clock:
    """A clock on which some seconds pass whenever somebody looks."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += self.step_s
        return self.now


def test_an_epoch_that_is_not_sent_in_time_is_given_up_and_sent_later(
    kafka: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create(kafka, topic)
    store = DirectoryStore(tmp_path)
    sink = KafkaSink(topic, servers=kafka.address, transaction_timeout="10 s")
    one = committable(store, sink, 1, [1])
    of = sink.committer(store, PATHS)
    of.claim(JOB_ID, 1)
    said = r"transaction_timeout is 10 s\. Nothing is lost"
    with monkeypatch.context() as slow, pytest.raises(client.KafkaError, match=said):
        slow.setattr(transactions, "time", Clock(11.0))
        of.commit(permit(1), [one])
    assert seen(kafka, topic) == []
    of.claim(JOB_ID, 2)
    of.commit(permit(1), [one])
    assert seen(kafka, topic) == [1]


def test_an_epoch_too_large_for_its_time_is_refused_before_anything_is_sent(
    kafka: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch before took seconds for some bytes; this one has a thousand times as many."""
    topics.create(kafka, topic)
    store = DirectoryStore(tmp_path)
    sink = KafkaSink(topic, servers=kafka.address, transaction_timeout="1 min")
    small, large = committable(store, sink, 1, [1]), committable(store, sink, 2, list(range(1000)))
    of = sink.committer(store, PATHS)
    monkeypatch.setattr(transactions, "MEASURED_BYTES", 1)
    monkeypatch.setattr(transactions, "time", Clock(1.0))
    of.claim(JOB_ID, 1)
    of.commit(permit(1), [small])
    with pytest.raises(client.KafkaError, match=r"needs \d+ s, and transaction_timeout is 60 s"):
        of.commit(permit(2), [large])
    assert len(topics.records(kafka, topic, **{"isolation.level": "read_uncommitted"})) == 1


def test_rows_whose_marker_and_files_are_both_gone_are_not_lost_silently(
    kafka: Broker, topic: str, tmp_path: Path
) -> None:
    topics.create(kafka, topic)
    store = DirectoryStore(tmp_path)
    one = committable(store, KafkaSink(topic, servers=kafka.address), 1, [1])
    store.delete(one.payload["path"])
    of = committer(store, kafka.address, topic)
    of.claim(JOB_ID, 2)
    with pytest.raises(client.KafkaError, match=r"the topic 'weir-markers' has no marker .* give the sink another uid"):
        of.commit(permit(1), [one])
