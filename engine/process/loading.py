"""Loads a job from an import path such as `assets.pageviews.job:job`. Job code travels as this path."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import msgspec

import engine
from engine.api.calls import explained
from engine.api.environment import StreamEnvironment
from engine.api.params import Param
from engine.connectors.table import TableSink
from engine.core.authors import defined_at, line_of, raised, raised_by_weir, short_line
from engine.core.errors import JobError, LoadFailed, WeirError, fault_of
from engine.graph.job_graph import JobGraph
from engine.graph.scalable import ScalableJob
from engine.graph.stream_graph import StreamGraph
from engine.host.launch import LaunchOptions, default_name
from engine.process.code_hash import code_hash
from engine.protocol.failures import Fault


@dataclass(frozen=True)
class LoadedJob:
    """`graph` is that of `job` at the scaling of the options."""

    job: ScalableJob
    graph: JobGraph
    params: list[Param]

    @property
    def stream_graph(self) -> StreamGraph:
        return self.job.stream_graph


def load(options: LaunchOptions) -> JobGraph:
    """Returns the job's graph at the scaling of the options."""
    return load_job(options).graph


def load_scalable(options: LaunchOptions) -> ScalableJob:
    """Makes the same job in the JobMaster and in every slot."""
    return load_job(options).job


def load_job(options: LaunchOptions) -> LoadedJob:
    look_in_current_folder()
    if options.code and sys.path[0] != options.code:
        sys.path.insert(0, options.code)  # before the files that the archive was made of
    function = find_job(options.path)
    _check_signature(options.path, function)
    env = StreamEnvironment(params=options.params, parallelism=options.parallelism)
    try:
        function(env)
    except (Exception, SystemExit) as error:
        raise _not_built(f"the job {options.path} raised while it was being built", error) from error
    env.params.check_all_known(_arguments(function)[1:])
    if options.own_tables:
        _put_tables_into_own_folder(env.graph)
    job = env.scalable(options.name or default_name(options.path), code_hash(function))
    return LoadedJob(job, job.at(options.scaling), list(env.params.declared.values()))


def _put_tables_into_own_folder(graph: StreamGraph) -> None:
    for node in graph.nodes:
        sink = node.operator.sink if node.operator is not None else None
        if isinstance(sink, TableSink):
            sink.path = sink.path.removeprefix("/")


def _arguments(function: Callable[..., None]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values()) if inspect.isfunction(function) else []


def _check_signature(path: str, function: Callable[..., None]) -> None:
    """Raises a `JobError` if the function can't be called with the environment alone."""
    if not inspect.isfunction(function):
        return
    given, name = _arguments(function), function.__name__
    at = f" ({short_line(defined_at(function))})"
    if not given or given[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise JobError(f"{path}: a job takes the environment: def {name}(env){at}")
    needed = [one.name for one in given[1:] if one.default is one.empty and one.kind not in _ANY_NUMBER]
    if needed:
        raise JobError(
            f"{path}: a job takes the environment only: def {name}(env); declare parameters in its body, as in "
            f'{needed[0]} = env.params.get("{needed[0]}", 5, "what it means"){at}'
        )


_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _not_built(what: str, error: BaseException) -> JobError:
    """Returns the error with the author's line. Weir's own errors say what is wrong; others say what raised them."""
    found = raised(error)
    kind = LoadFailed if fault_of(error) is Fault.OUTSIDE else JobError
    at = f" ({short_line(found.line)})" if found.line else ""
    if said := explained(error):
        return kind(f"{said}{at}", msgspec.structs.replace(found, traceback=""))
    if isinstance(error, WeirError) or (isinstance(error, ValueError) and raised_by_weir(error)):
        return kind(f"{error}{at}", msgspec.structs.replace(found, traceback=""))
    said = error.msg if isinstance(error, SyntaxError) and at else str(error)  # its text names the line, too
    return kind(f"{what}: {type(error).__name__}: {said}{at}", found)


def find_job(path: str) -> Callable[[StreamEnvironment], None]:
    """Finds the function behind an import path; a JobError says what is wrong with the path."""
    module_name, colon, name = path.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise JobError(f"{path!r} is a file: write its module, {dotted}:{name or 'job'}")
    if not colon or not module_name or not name:
        raise JobError(f"{path!r} is not a job: write MODULE:FUNCTION, as in assets.pageviews.job:job")
    _check_engine(Path.cwd())
    look_in_current_folder()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise JobError(
                f"there is no module {module_name!r} (looked from {Path.cwd()}): check the path, and run weir in the "
                "project's folder"
            ) from error
        line = line_of(error)
        parent = (error.name or "").rpartition(".")[0]
        where = f"in the package {parent!r}" if parent in sys.modules else f"installed for {sys.executable}"
        raise JobError(
            f"{module_name} can't be imported: it needs the module {error.name!r}, which is not {where}"
            + (f" ({short_line(line)})" if line else "")
        ) from error
    except (Exception, SystemExit) as error:
        raise _not_built(f"{module_name} can't be imported", error) from error
    function = getattr(module, name, None)
    if function is None or inspect.ismodule(function):  # a module of the package may be imported already
        found = [n for n, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module_name]
        if hasattr(module, "__path__") and find_spec(f"{module_name}.{name}") is not None:
            raise JobError(f"{module_name}.{name} is a module, not a function: write {module_name}.{name}:job")
        raise JobError(f"{module_name} has no {name!r}; it has the functions: {', '.join(found) or 'none'}")
    if not callable(function):
        raise JobError(f"{path} is not a function")
    return function  # type: ignore[no-any-return]


def look_in_current_folder() -> None:
    """Lets modules be found in the current folder, as `python -m` does and an installed command does not."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _check_engine(folder: Path) -> None:
    """Raises a JobError if the folder has a package `engine` of its own: every process of the job would import it."""
    found = PathFinder.find_spec("engine", [str(folder)])
    origin = found.origin if found is not None else None
    if origin is not None and Path(origin).resolve() != Path(engine.__file__).resolve():
        raise JobError(
            f"{origin} hides Weir's own package `engine` ({Path(engine.__file__).parent}): rename it, or run weir in "
            "another folder"
        )
