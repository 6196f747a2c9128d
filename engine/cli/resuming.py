"""`weir resume`: starts again what should be running, after a reboot or after a supervisor was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Annotated

import typer
from rich.markup import escape

from engine.cli.launching import store_hint
from engine.cli.shared import Store, client_of, console, errors, examples
from engine.core.errors import WeirError
from engine.observe.client import JobClient, known_jobs, no_such_job
from engine.process.resume import Found, Wanted, carry_on_upgrade, look, resume

_HINTS = {
    Wanted.STOPPED: "start it with `weir submit {path} --name {job}{store}`",
    Wanted.FINISHED: "a start would read nothing; `weir submit {path} --name NAME{store}` reads all again",
    Wanted.FAILED: "mend the cause, then start it with `weir submit {path} --name {job}{store}`",
    Wanted.NEVER_STARTED: "start it with `weir submit MODULE:FUNCTION --name {job}{store}`",
}


def add_to(app: typer.Typer) -> None:
    app.command("resume", epilog=examples("weir resume pageviews", "weir resume --all --store /data/weir"))(resume_jobs)


def resume_jobs(
    job: Annotated[str | None, typer.Argument(help="name of the job (weir jobs)", metavar="JOB")] = None,
    every: Annotated[
        bool, typer.Option("--all", metavar="", help="resume all jobs of the store that should be running")
    ] = False,
    store: Store = ".weir",
) -> None:
    """Start a job again that should be running and is not: after a reboot, or after its supervisor was killed.

    It is started exactly as the last time: Spark master and configuration, parallelism, memory, parameters, standby, in
    the folder in which it was started. It goes on from its last epoch, in the background. A job that somebody stopped,
    that has finished or that has failed is not started. An upgrade that was interrupted is carried on.
    """
    if (job is not None) is every:
        raise WeirError("name one job, or use --all: `weir resume pageviews`, `weir resume --all`")
    if job is not None:
        _resume_one(client_of(store, job), store)
    elif False in list(_resume_all(store)):  # all of them: one that fails must not keep the others from being told
        raise typer.Exit(1)


def _resume_one(client: JobClient, store: str) -> None:
    if client.name not in known_jobs(store):
        raise WeirError(no_such_job(store, client.name))
    found = look(client)
    if found.verdict is Wanted.UPGRADED:
        record = carry_on_upgrade(client, lambda text: console.print(f"  {escape(text)}", highlight=False))
        if record is not None:
            console.print(escape(record.in_words(client.name)), highlight=False, soft_wrap=True)
        found = look(client)
    if found.verdict is Wanted.RUNNING:
        console.print(f"{client.name} {found.in_words()}", highlight=False)
        return
    if found.verdict is not Wanted.RESUMED or found.launch is None:
        raise WeirError(f"job {client.name!r} {found.in_words()}, so it is not resumed: {_hint(found, store)}")
    said = resume(client, found.launch, "cli")
    console.print(f"[green]{client.name} is being started again[/], as it was started last.", highlight=False)
    for line in said.splitlines():
        console.print(escape(line), highlight=False)
    console.print(f"Watch it with: weir status {client.name}{store_hint(store)}", highlight=False, soft_wrap=True)


def _hint(found: Found, store: str) -> str:
    path = found.launch.path if found.launch is not None else ""
    return _HINTS[found.verdict].format(path=path, job=found.job, store=store_hint(store))


def _resume_all(store: str) -> Iterator[bool]:
    """Starts each job by a command of its own: jobs of several projects can't be loaded in one process."""
    names = known_jobs(store)
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:  # to know that a supervisor is dead takes seconds
        looked = list(pool.map(lambda name: _look_at(JobClient(store, name)), names))
        found = [one for one in looked if isinstance(one, Found)]
        due = [one for one in found if one.verdict in (Wanted.RESUMED, Wanted.UPGRADED)]
        for why in (one for one in looked if isinstance(one, str)):
            errors.print(escape(why), highlight=False)
            yield False
        for one in found:
            if one not in due:
                console.print(f"{one.job} {escape(one.in_words())}: nothing to do", highlight=False)
        if not due:
            console.print("no job is to be resumed", highlight=False)
        started = {pool.submit(resume_by_command, one.job, store): one for one in due}
        for future in as_completed(started):
            code, output = future.result()
            (console if code == 0 else errors).print(escape(output.strip()), highlight=False, soft_wrap=True)
            yield code == 0


def _look_at(client: JobClient) -> Found | str:
    """Returns why a job can't be looked at, if so: it must not keep the others from being resumed."""
    try:
        return look(client)
    except (OSError, WeirError) as error:
        return f"{client.name} can't be looked at, so it is not resumed: {error}"


def resume_by_command(job: str, store: str) -> tuple[int, str]:
    """Runs `weir resume JOB`. Returns its exit code, and what it said."""
    command = [sys.executable, "-c", "from engine.cli.main import main; main()", "resume", job, "--store", store]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr
