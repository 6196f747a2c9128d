"""`make ui`: runs Dagster's webserver and daemon on loopback, with their state in a directory that survives restarts.

Ctrl-C, SIGTERM and a terminal that is closed end both and all their runs; streaming jobs are detached and go on. On the
first start the jobs whose spec says so are started and drilled once, so that there is something to see.

Invariant: no two daemons of `make ui` run on one home. The daemon itself holds the home's lock as long as it lives.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    import dagster as dg

from checks.catalogue import USUAL
from checks.report import REPORT
from engine.host.places import local_folder
from engine.store.directory import make_folder
from engine.store.opening import address_of

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
PORT = 3000
LOCATION = "weir"
START_TIMEOUT_S = 180.0
STOP_PATIENCE_S = 20.0
DATA_DOCS = "/data_docs"
"""The address at the UI that leads to Data Docs, whatever port serves them."""
DATA_DOCS_URL = "WEIR_DATA_DOCS_URL"
"""The environment variable that says where Data Docs are served."""
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, `kill`, and a terminal that is closed."""
_LAUNCHED_BY_A_DAEMON = ".dagster/grpc_info"
PARTITION = "dagster/partition"
"""Dagster's tag of the partition that a run makes."""


class Services:
    """Runs three processes, each in its own process group: code server (the parent of runs), webserver, daemon.

    Webserver and daemon share one code server: a daemon with its own would load the definitions anew every minute.
    """

    def __init__(
        self, home: Path, port: int, module: str, environment: Mapping[str, str], lock: int | None = None
    ) -> None:
        self.url = f"http://{HOST}:{port}"
        self._port = port
        self._home = home
        self._module = module
        self._lock = lock
        self._sockets = Path(tempfile.mkdtemp(prefix="weir-ui-"))  # short, as a socket's path must be, and private
        self._environment = {**os.environ, **environment, "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Services:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the processes, and returns when the UI can be opened."""
        prepare_home(self._home)
        code = self._sockets / "code"
        load = ["-m", self._module, "-d", str(ROOT), "--location-name", LOCATION]
        self._spawn("code", ["dagster", "code-server", "start", "--socket", str(code), *load])
        self._wait_for("code", lambda: _serves(code))
        server = {"grpc_server": {"socket": str(code), "location_name": LOCATION}}
        workspace = self._home / "workspace.yaml"
        workspace.write_text(yaml.safe_dump({"load_from": [server]}))
        self._spawn("daemon", ["dagster-daemon", "run", "-w", str(workspace)])
        web = ["python", "-m", "orchestration.webserver"]
        self._spawn("webserver", [*web, "-h", HOST, "-p", str(self._port), "-w", str(workspace)])
        self._wait_for("webserver", lambda: httpx.get(f"{self.url}/server_info", timeout=5).status_code == 200)

    def _wait_for(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if dead := self.dead():
                raise SystemExit(dead)
            with contextlib.suppress(httpx.HTTPError):
                if ready():
                    return
            time.sleep(0.2)
        raise SystemExit(f"the {name} is not up after {START_TIMEOUT_S:.0f} s; its log is {self.log(name)}")

    def log(self, name: str) -> Path:
        return self._home / "logs" / f"{name}.log"

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def dead(self) -> str | None:
        """Returns a message about a process that has ended by itself, if there is one."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                return f"Dagster's {name} has ended (exit code {process.returncode}); its log is {self.log(name)}"
        return None

    def stop(self) -> None:
        """Terminates all process groups, and kills what is left of them after a while."""
        groups = [process.pid for process in self._processes.values()]
        for sent, patience_s in ((signal.SIGTERM, STOP_PATIENCE_S), (signal.SIGKILL, STOP_PATIENCE_S)):
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, sent)
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline and any(self._alive(group) for group in groups):
                time.sleep(0.1)
        self._processes = {}
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _alive(self, group: int) -> bool:
        for process in self._processes.values():
            process.poll()  # a zombie would still count as a member of its group
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        return True

    def _spawn(self, name: str, command: list[str]) -> None:
        program = sys.executable if command[0] == "python" else str(Path(sys.executable).parent / command[0])
        holds = (self._lock,) if self._lock is not None and name == "daemon" else ()
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "orchestration.tied", str(os.getpid()), program, *command[1:]],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=holds,
                start_new_session=True,  # Ctrl-C reaches only this process, which then ends the others in order
            )


def _serves(path: Path) -> bool:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="DagsterApi"), timeout=5
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def prepare_home(home: Path) -> None:
    make_folder(home)
    shutil.copyfile(ROOT / "dagster.yaml", home / "dagster.yaml")


def free_port(preferred: int = 0) -> int:
    for port in (preferred, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            return int(probe.getsockname()[1])
    raise SystemExit("there is no free port on loopback")


def forget_lost_runs(instance: dg.DagsterInstance) -> None:
    """Reports the runs of an earlier daemon as canceled: they ended with it. Call it only while no daemon runs."""
    import dagster as dg

    statuses = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=statuses)):
        if _LAUNCHED_BY_A_DAEMON in run.tags:
            instance.report_run_canceled(run, "The UI was stopped while this run was under way.")


class FirstStart:
    """Starts and drills each job of `on_first_start` once, one run after the other, and reports the progress."""

    def __init__(self, instance: dg.DagsterInstance, url: str, say: Callable[[str], None]) -> None:
        from orchestration.definitions import SPECS

        self._instance = instance
        self._url = url
        self._say = say
        self._run: str | None = None
        self._todo: list[tuple[str, str, str, dict[str, str]]] = []
        specs = [spec for spec in SPECS if spec.on_first_start]
        for spec in specs:
            self._add(spec.stream_key, f"{spec.job}_start", f"start of {spec.job}", "overview")
        for spec in specs:
            if spec.drill is not None:
                self._add(spec.drills_key, f"{spec.job}_drill", f"drill of {spec.job}", "checks", partition=USUAL)

    def _add(self, key: dg.AssetKey, job: str, what: str, view: str, partition: str = "") -> None:
        """Adds a job to be run, unless its asset was materialized before or a run of it is still queued."""
        import dagster as dg

        queued = self._instance.get_runs(dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.QUEUED]))
        if self._instance.get_latest_materialization_event(key) is None and not queued:
            tags = {PARTITION: partition} if partition else {}
            self._todo.append((job, what, f"{self._url}/assets/{key.to_user_string()}?view={view}", tags))

    def poll(self) -> None:
        if not self._todo:
            return
        job, what, link, tags = self._todo[0]
        if self._run is None:
            self._run = launch_job(self._url, job, tags=tags)
            self._say(f"{what}: under way …")
            return
        run = self._instance.get_run_by_id(self._run)
        if run is None or run.is_finished:
            self._say(f"{what}: {'deleted' if run is None else run.status.value.lower()} ({link})")
            self._run = None
            del self._todo[0]


def launch_job(
    url: str,
    job: str,
    config: Mapping[str, object] | None = None,
    location: str = LOCATION,
    tags: Mapping[str, str] | None = None,
) -> str:
    """Puts a run into the queue, as the button in the UI does, and returns its id."""
    from dagster_graphql import DagsterGraphQLClient

    port = int(url.rpartition(":")[2])
    client = DagsterGraphQLClient(HOST, port_number=port)
    launched = client.submit_job_execution(
        job, location, "__repository__", run_config=dict(config or {}), tags=dict(tags or {})
    )
    return str(launched)


@contextlib.contextmanager
def only_one(home: Path, url: str) -> Iterator[int]:
    """Locks the home, and yields the lock: two daemons on one home would run every schedule twice."""
    make_folder(home)
    path = home / "ui.lock"
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            where = f"{lock.read().strip()} (state in {home})"
            raise SystemExit(f"make ui is running already: {where}. If it was killed, its daemon ends soon") from None
        lock.truncate(0)
        lock.write(url)
        lock.flush()
        yield lock.fileno()


class _DataDocs(http.server.SimpleHTTPRequestHandler):
    """Serves only Data Docs of drills, audits and rehearsals, and the reports on drills. `/runs/…` leads to the UI."""

    def __init__(self, ui: str, *args: Any, **kwargs: Any) -> None:
        self._ui = ui
        super().__init__(*args, **kwargs)

    def send_head(self) -> Any:
        if self.path.startswith("/runs/"):
            self.send_response(302)
            self.send_header("Location", self._ui + self.path)
            self.end_headers()
            return None
        parts = Path(self.translate_path(self.path)).relative_to(self.directory).parts
        if parts[:1] == ("drills",) and parts[2:] == (REPORT,):
            return super().send_head()
        if parts[:1] not in (("drills",), ("audits",), ("rehearsals",)) or parts[3:4] != ("data_docs",):
            self.send_error(404)
            return None
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve_data_docs(store: str, port: int, ui: str) -> str:
    """Serves the pages in the store as long as this process lives, and returns its address. `ui`: that of the UI."""
    handler = functools.partial(_DataDocs, ui, directory=str(local_folder(store)))
    server = http.server.ThreadingHTTPServer((HOST, port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{HOST}:{port}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make ui", description="Weir in Dagster's UI.")
    parser.add_argument("--home", type=Path, default=ROOT / ".weir" / "dagster", help="folder for Dagster's state")
    parser.add_argument("--port", type=int, default=PORT, help="port of the UI; another one is used if it is taken")
    arguments = parser.parse_args()
    home, port = arguments.home.absolute(), free_port(arguments.port)
    store = address_of(os.environ.get("WEIR_STORE", ROOT / ".weir"))
    os.environ |= {"DAGSTER_HOME": str(home), "WEIR_STORE": store}
    for ends in ENDS:  # a shell starts background jobs with SIGINT ignored
        signal.signal(ends, signal.default_int_handler)
    with only_one(home, f"http://{HOST}:{port}") as lock:
        docs = serve_data_docs(store, free_port(port + 1), f"http://{HOST}:{port}")
        services = Services(home, port, "orchestration.definitions", {DATA_DOCS_URL: docs}, lock)
        try:
            why = serve(services, store)
        except KeyboardInterrupt:
            why = None
        finally:
            for ends in ENDS:  # a second one must not interrupt the clean-up
                signal.signal(ends, signal.SIG_IGN)
            _say("stopping …")
            services.stop()
    if why is not None:
        raise SystemExit(why)
    _say("stopped. Running jobs go on: .venv/bin/weir jobs lists them, .venv/bin/weir cancel NAME ends one.")


def serve(services: Services, store: str) -> str:
    """Runs the services until Ctrl-C, or returns a message when one of their processes has ended."""
    _say("starting Dagster (about 20 s) …")
    prepare_home(Path(os.environ["DAGSTER_HOME"]))
    import dagster as dg

    with dg.DagsterInstance.get() as instance:
        forget_lost_runs(instance)
        services.start()
        _say(f"\n    {services.url}\n\njobs are in {store}, Dagster's state in {instance.root_directory}")
        _say("Ctrl-C stops the UI and leaves the jobs running")
        first = FirstStart(instance, services.url, _say)
        while (dead := services.dead()) is None:
            first.poll()
            time.sleep(1)
    return dead


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(text, flush=True)


if __name__ == "__main__":
    main()
