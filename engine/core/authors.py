"""Finds the author's part of a traceback: the frames of the job's own code, without those of Weir and of libraries."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from types import FrameType, TracebackType

import engine
from engine.core.habits import instead
from engine.protocol.failures import Raised

_ENGINE = os.path.dirname(os.path.abspath(engine.__file__)) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NAMELESS = ("<string>", "<frozen ")
"""The files of code that dataclasses and the like make, and of Python's own import."""

_TEXT = 8000
"""The most characters of a traceback or a message that are kept."""


def raised(error: BaseException, position: str = "", record: str = "") -> Raised:
    frames = _frames(error.__traceback__)
    others = [frame for frame in frames if not _in_engine(frame)]
    first = next((frame for frame in others if not _in_library(frame)), others[0] if others else None)
    text = ""
    if isinstance(error, SyntaxError) and not author_took_part(error):
        text = "".join(traceback.format_exception_only(error))  # Python's import found it; its frames say nothing
    elif first is not None:
        text = "".join(traceback.format_exception(type(error), error, first)).removeprefix(_HEADER)
    return Raised(type(error).__name__, _short(message_of(error)), line_of(error), position, record, _short(text))


def message_of(error: BaseException) -> str:
    """Returns the message of an author's error, and what to write instead if that is known.

    The error may be unable to tell its message, or the message may be impossible to write as UTF-8.
    """
    try:
        said = f": {written}" if (written := instead(error)) else ""
        return f"{error}{said}".encode(errors="backslashreplace").decode()
    except Exception as second:
        return f"(its message raises {type(second).__name__})"


_HEADER = "Traceback (most recent call last):\n"


def line_of(error: BaseException) -> str:
    """Returns the author's innermost line in an error's traceback, or nothing if the author's code took no part."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in _frames(error.__traceback__) if not _in_engine(frame)]
    own = [frame for frame in frames if not _in_library(frame)]
    named = [frame for frame in frames if not _file(frame).startswith(_NAMELESS)]
    at = own[-1] if own else named[0] if named else None
    return f"{_file(at)}:{at.tb_lineno}" if at is not None else ""


def defined_at(function: object) -> str:
    """Returns the line on which a function or a method is defined, or nothing if it is not known."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def raised_by_weir(error: BaseException) -> bool:
    """Says whether Weir itself raised the error, to refuse what it was given."""
    frames = _frames(error.__traceback__)
    return bool(frames) and _in_engine(frames[-1])


def author_took_part(error: BaseException) -> bool:
    """Says whether code that belongs neither to Weir nor to a library is in an error's traceback."""
    return any(not _in_engine(frame) and not _in_library(frame) for frame in _frames(error.__traceback__))


def short_line(line: str) -> str:
    """Returns `job.py, line 7` of `/home/me/job.py:7`."""
    file, _, number = line.rpartition(":")
    return f"{os.path.basename(file)}, line {number}"


def calling_line() -> str:
    """Returns the author's line that called Weir, or nothing if Weir called itself."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_ENGINE) and file != "<string>":
            return "" if file.startswith((*_LIBRARIES, *_NAMELESS)) else f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _frames(found: TracebackType | None) -> list[TracebackType]:
    frames = []
    while found is not None:
        frames.append(found)
        found = found.tb_next
    return frames


def _file(frame: TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename


def _in_engine(frame: TracebackType) -> bool:
    return _file(frame).startswith(_ENGINE)


def _in_library(frame: TracebackType) -> bool:
    return _file(frame).startswith((*_LIBRARIES, *_NAMELESS))


def _short(text: str) -> str:
    """Keeps the beginning and the end of a long text: a traceback says most there."""
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]}\n…\n{text[-_TEXT // 2 :]}"
