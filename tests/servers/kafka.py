"""Real Kafka brokers in KRaft mode. `python -m tests.servers.kafka` (`make kafka`) fetches and prints their jars.

The jars come from Maven Central, once, into Maven's own repository, outside of the tree; they are used from there.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.minio import CACHE

VERSION = "4.1.0"
HEAP = "-Xmx384m"
START_S = 180.0
TRIES = 3

USER, PASSWORD = "weir", "weir-secret"
"""Who may use a broker that asks for a password."""

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weir</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


def class_path() -> str:
    """Returns the class path of a broker: as it was found once, or as Maven finds it now (15 s, and 43 MB)."""
    known = CACHE / f"kafka-{VERSION}.classpath"
    if not known.exists() or not all(Path(jar).exists() for jar in known.read_text().strip().split(":")):
        print(f"fetching Kafka {VERSION} with Maven, once: 43 MB", file=sys.stderr)
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            Path(work, "pom.xml").write_text(_POM)
            command = ["mvn", "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={work}/classpath"]
            subprocess.run(command, cwd=work, check=True)
            Path(work, "classpath").replace(known)
    return known.read_text().strip()


class Broker:
    """A single-node cluster. It keeps its data in a folder, and comes back at the same port with the same data.

    `advertised`: the port that clients are told to use, such as that of a proxy in front of it.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, advertised: int | None = None, sasl: bool = False
    ) -> None:
        self.folder = folder
        self.port, self._controller_port = _free_ports(2)
        self._settings = dict(settings or {})
        self._advertised = advertised
        self._sasl = sasl
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        """What clients connect to first."""
        return f"127.0.0.1:{self._advertised or self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    def start(self) -> None:
        """Starts the broker, on other ports if somebody else has taken one before the first start."""
        for _ in range(TRIES):
            first = not (self.folder / "data").exists()
            self._configure()
            if first:
                self._run_tool("kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(self._config))
            with (self.folder / "broker.log").open("ab") as out:
                self._process = subprocess.Popen(
                    [*self._java(), "kafka.Kafka", str(self._config)], stdout=out, stderr=subprocess.STDOUT
                )
            if self._is_ready():
                return
            self.kill()
            if not first or self._advertised is not None:
                continue
            self.port, self._controller_port = _free_ports(2)
        raise AssertionError(f"Kafka did not start: {(self.folder / 'broker.log').read_text()[-3000:]}")

    def kill(self) -> None:
        """Ends the broker as `kill -9` does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def client(self, **more: object) -> dict[str, object]:
        """Returns the settings of a client."""
        settings: dict[str, object] = {"bootstrap.servers": self.address, **more}
        if self._sasl:
            settings |= {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        return settings

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    @property
    def _config(self) -> Path:
        return self.folder / "server.properties"

    def _configure(self) -> None:
        protocol = "SASL_PLAINTEXT" if self._sasl else "PLAINTEXT"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"CLIENTS://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"CLIENTS://{self.address}",
            "listener.security.protocol.map": f"CLIENTS:{protocol},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "CLIENTS",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "data"),
            "num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "false",
            "log.cleaner.dedupe.buffer.size": str(4 << 20),
            "num.network.threads": "2",
            "num.io.threads": "4",
            # A record that the broker has answered for is in the page cache: it survives kill -9 of the broker.
            **self._settings,
        }
        if self._sasl:
            who = f'username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}"'
            settings |= {
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.clients.plain.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {who};"
                ),
            }
        self._config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @staticmethod
    def _java() -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", quiet, "-cp", class_path()]

    def _run_tool(self, *command: str) -> None:
        done = subprocess.run([*self._java(), *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def _is_ready(self) -> bool:
        """Waits until the broker accepts connections. Returns False if it has ended, or takes too long."""
        assert self._process is not None
        until = time.monotonic() + START_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
                continue
            return True
        return False


@contextmanager
def running(
    folder: Path, settings: Mapping[str, str] | None = None, advertised: int | None = None, sasl: bool = False
) -> Iterator[Broker]:
    """Runs a broker of its own, which a test may pause and kill."""
    broker = Broker(folder, settings, advertised, sasl)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that tests share: each test takes topics of its own, and none harms it."""
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A name for a topic that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


if __name__ == "__main__":
    print(class_path())
