"""`weir` starts, shows and manages jobs from a terminal. Commands that change a running job use HTTP."""

from __future__ import annotations

import inspect
import re
import sys
import time
from functools import partial
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from engine.cli import collecting as cli_collect
from engine.cli import gate as cli_gate
from engine.cli import inspecting as cli_inspect
from engine.cli import rescaling as cli_rescale
from engine.cli import resuming as cli_resume
from engine.cli import savepoints as cli_savepoints
from engine.cli import upgrading as cli_upgrade
from engine.cli.doctor import render as render_doctor
from engine.cli.doctor import run_doctor
from engine.cli.foreground import Printed, watch
from engine.cli.launching import (
    GoBack,
    JobPath,
    Parallelism,
    Param,
    finish,
    launching,
    prepare,
    shown_options,
    store_hint,
)
from engine.cli.logs import logs
from engine.cli.new import new
from engine.cli.other_names import hint
from engine.cli.shared import JobName, Store, client_of, console, errors, examples, print_differences, print_raised
from engine.cli.state import state
from engine.cli.tables import Rows
from engine.core.errors import IncompatibleJob, StoreError, WeirError
from engine.graph.drawing.diagram import Level, diagrams
from engine.graph.drawing.render import Format
from engine.graph.drawing.render import render as render_graph
from engine.graph.execution_graph import ExecutionGraph
from engine.host.launch import LaunchOptions
from engine.host.run_folder import Deaths, MasterExit, RunFolder
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.process.loading import find_job, load, load_job
from engine.process.submit import start_detached
from engine.process.supervisor import Supervisor
from engine.spark.packaging import package

app = typer.Typer(
    help="Exactly-once streaming jobs on Spark. To start a job, give its import path, as in assets.pageviews.job:job; "
    "afterwards give its name, such as pageviews. `weir COMMAND --help` explains a command.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"weir {version('weir')}")
        raise typer.Exit


@app.callback()
def everywhere(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="print the version of Weir")
    ] = False,
) -> None:
    pass


def main() -> None:
    add_commands(app)
    unwrap_help(app)
    try:
        code = app(standalone_mode=False, prog_name="weir") or 0
        if code == INTERRUPTED and (said := _GOES_ON.get(sys.argv[1])):
            errors.print(f"[yellow]interrupted:[/] {said}", highlight=False)
        sys.exit(code)
    except IncompatibleJob as error:
        print_differences(error)
        sys.exit(1)
    except WeirError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}")
        print_raised(getattr(error, "raised", None))
        sys.exit(1)
    except OSError as error:  # a file that is a folder, or may not be read
        errors.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(1)
    except Exception as error:
        if hasattr(error, "format_message"):  # a wrong option or argument
            if said := error.format_message():  # none if `weir` was called without a command: it has printed its help
                context: typer.Context | None = getattr(error, "ctx", None)
                command = context.command_path if context is not None else _typed_command()
                named = hint(said, "".join(_words()), getattr(error, "option_name", ""))
                if named:  # instead of the nearest spelling
                    said = re.split(r"\.? Did you mean|\.? \(Possible options|\.$", said)[0] + f". {named}"
                errors.print(f"[bold red]error:[/] {escape(said)}\n`{command} --help` lists what it takes")
            sys.exit(2)
        raise


def _typed_command() -> str:
    """Returns the command whose options were wrong: the parser's own errors do not name it."""
    return " ".join(["weir", *_words()])


def _words() -> list[str]:
    """Returns the command that was typed, without its arguments; nothing if an option came first."""
    return [word for word in sys.argv[1:2] if not word.startswith("-")]


INTERRUPTED = 130
"""The exit code after Ctrl-C."""
_ASKED = "the job may still do what it was asked for; `weir status JOB` shows it"
_GOES_ON = {
    "submit": "the job may still be starting; `weir jobs` shows it, `weir cancel JOB` ends it",
    "upgrade": "`weir upgrade JOB` carries on an upgrade that was begun, and `weir jobs` says whether there is one",
} | dict.fromkeys(("cancel", "checkpoint", "rescale", "savepoint", "stop"), _ASKED)
"""What becomes of what a command had begun when it was interrupted."""


def unwrap_help(of: typer.Typer) -> None:
    """Joins the lines of each paragraph of a docstring, so that a narrow terminal wraps them where it needs to."""
    for command in of.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


def add_commands(to: typer.Typer) -> None:
    """Adds the commands of other packages, found by their entry points `weir.commands`; the engine imports none."""
    for entry in sorted(entry_points(group="weir.commands"), key=lambda entry: entry.name):
        try:
            to.command(entry.name, epilog=examples(f"weir {entry.name} assets.pageviews.job:job"))(entry.load())
        except ImportError as error:
            errors.print(f"[yellow]weir {entry.name} is missing: {escape(str(error))}[/]")


@app.command(
    epilog=examples(
        "weir run assets.pageviews.job:job",
        "weir run assets.pageviews.job:job --param rate=50000 --parallelism 4 --name fast",
        "weir run assets.pageviews.job:job --name again --from pageviews/nightly",
    )
)
@launching
def run(options: LaunchOptions, store: str, back: GoBack) -> None:
    """Run a job in the foreground, with a live view and the records that its print sinks print.

    Ctrl-C cancels it; the next run goes on from its last epoch.
    """
    launch = prepare(options, store, back)
    folder = RunFolder(launch.store, launch.name)
    printed = Printed(folder.logs, load(launch))
    supervisor = Supervisor(launch, lambda what: errors.print(f"[yellow]{what}[/]"))
    supervisor.start()
    folder.want_running(launch, "cli")
    try:
        ended = watch(console, JobClient(launch.store, launch.name), supervisor.poll, printed)
    except KeyboardInterrupt:
        console.print("cancelling …")
        try:
            folder.want_stopped_here("cli")
        except StoreError as error:
            errors.print(f"[yellow]{escape(str(error))}[/]")
        supervisor.stop()
        folder.share_desired()
        ended = folder.read_exit() or MasterExit(Outcome.CANCELLED, "cancelled")
    finally:
        supervisor.stop()
    finish(ended, launch)


@app.command(
    epilog=examples(
        "weir submit assets.pageviews.job:job; weir status pageviews; weir logs pageviews -f",
        "weir submit assets.pageviews.job:job --master spark://host:7077",
    )
)
@launching
def submit(options: LaunchOptions, store: str, back: GoBack) -> None:
    """Start a job in the background and return when it runs. It outlives this terminal; `weir cancel` ends it.

    What it prints is in `weir logs`.
    """
    launch = prepare(options, store, back)
    client = start_detached(launch, "cli")
    with console.status(f"starting {launch.name} …") as line:
        ended = client.wait_until_running(
            on_death=partial(_show_death, launch.name),
            on_sign=lambda sign: line.update(f"starting {launch.name}: {sign.in_words()} …"),
        )
    if ended is not None:
        finish(ended, launch)
        return
    console.print(
        f"[green]{launch.name} is running.[/] Watch it with: weir status {launch.name}{store_hint(store)}",
        soft_wrap=True,
    )


def _show_death(name: str, deaths: Deaths) -> None:
    errors.print(f"[yellow]{escape(deaths.in_words(time.time_ns() // 1_000_000))}[/]", highlight=False)
    if deaths.total == 1:
        errors.print(f"it is tried again until it runs; `weir logs {name}` shows more, `weir cancel {name}` ends it")


cli_inspect.add_to(app)
app.command(
    epilog=examples(
        "weir logs pageviews -f --tail 20",
        "weir logs pageviews --level warning",
        "weir logs pageviews --operator clean",
    )
)(logs)
cli_collect.add_to(app)
cli_resume.add_to(app)
cli_savepoints.add_to(app)
cli_upgrade.add_to(app)
cli_rescale.add_to(app)
cli_gate.add_to(app)
app.command(epilog=examples("weir new orders; weir run orders.job:job"))(new)
app.command(epilog=examples("weir state orders unpaid 4711", "weir state pageviews pv app-1 --json"))(state)


@app.command(epilog=examples("weir checkpoint pageviews; weir checkpoints pageviews"))
def checkpoint(
    job: JobName,
    store: Store = ".weir",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="time to wait")] = 60.0,
) -> None:
    """Trigger a checkpoint now and wait until it is published and committed."""
    client = client_of(store, job)
    made = client.wait_for_checkpoint(client.trigger_checkpoint(), timeout)
    console.print(f"[green]checkpoint {made.checkpoint} is epoch {made.epoch}[/], {made.duration_ms:.0f} ms")


@app.command(epilog=examples("weir cancel pageviews"))
def cancel(job: JobName, store: Store = ".weir") -> None:
    """End a job. Its last epoch stays; the next start goes on from there."""
    client = client_of(store, job)
    client.cancel()
    with console.status("cancelling …"):
        client.wait_until_ended()
    console.print(f"{client.name} is cancelled")


@app.command(
    epilog=examples(
        "weir describe assets.pageviews.job:job", "weir describe assets.pageviews.job:job --param rate=50000"
    )
)
def describe(job: JobPath, param: Param = None, parallelism: Parallelism = None) -> None:
    """Show a job's parameters and its graph, without running it."""
    options = shown_options(job, param, parallelism)
    loaded = load_job(options)
    given = options.params
    table = Rows("parameter", *(["value"] if given else []), "default", "meaning", wrap="meaning")
    for declared in loaded.params:
        value = [given.get(declared.name, "")] if given else []
        table.add(declared.name, *value, repr(declared.default), declared.help)
    if loaded.params:
        console.print(table, "")
    print(render_graph(diagrams(loaded.stream_graph, loaded.graph, Level.JOB), Format.TEXT), end="")
    execution = ExecutionGraph(loaded.graph)
    print(f"{len(execution.subtasks)} subtasks in {execution.slots} slots")
    if loaded.graph.no_checkpoints:
        print(loaded.graph.no_checkpoints)


@app.command(
    epilog=examples(
        "weir graph assets.pageviews.job:job", "weir graph assets.pageviews.job:job --format svg -o pageviews.svg"
    )
)
def graph(
    job: JobPath,
    level: Annotated[Level | None, typer.Option(help="graph to draw (default: all three)")] = None,
    form: Annotated[Format, typer.Option("--format", help="format of the drawing")] = Format.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="file to write")] = None,
    param: Param = None,
    parallelism: Parallelism = None,
) -> None:
    """Draw a job without running it: its operators, how they are chained, and their subtasks in slots."""
    loaded = load_job(shown_options(job, param, parallelism))
    drawn = render_graph(diagrams(loaded.stream_graph, loaded.graph, level), form)
    if output is None:
        print(drawn, end="")
        return
    try:
        output.write_text(drawn)
    except OSError as error:
        raise WeirError(f"can't write {output}: {error.strerror}; choose another file with -o") from error
    console.print(f"{output} is written", highlight=False, soft_wrap=True)


@app.command("package")
def package_job(
    job: JobPath,
    folder: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="folder for weir-job.zip")] = Path(),
) -> None:
    """Make the archive that ships a job to a cluster: the engine and the job's package, for any --py-files option.

    With spark-submit: spark-submit --master spark://host:7077 --py-files weir-job.zip script.py
    """
    find_job(job)  # raises an error that says what is wrong with the path
    console.print(str(package(job, folder)), highlight=False, soft_wrap=True)


@app.command(epilog=examples("weir doctor", "weir doctor --deep", "weir doctor --store s3://bucket/prefix"))
def doctor(
    store: Store = ".weir",
    deep: Annotated[bool, typer.Option(metavar="", help="also start Spark and run a task on it")] = False,
) -> None:
    """Check this machine, and say what to do about anything that is missing."""
    checks = run_doctor(store, deep=deep)
    print(render_doctor(checks))
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
