"""Lets one process stand right before one call while a file says which call. The savepoints' vandal uses it.

The file's name is in `WEIR_CHAOS_GATE`. It holds four lines: a call (`open`, `fsync` or `link`), a regular expression
for its path, a pattern of files one of which has to exist already (or nothing), and how many such calls pass before.
The process that comes to the call writes its pid into the file with `.standing` behind its name. It goes on when the
first file is gone. All other processes pass.
"""

import glob
import os
import re
import time

_gate = os.environ.get("WEIR_CHAOS_GATE", "")
_open, _fsync, _link = os.open, os.fsync, os.link


def _stand(call: str, path: str) -> None:
    try:
        with open(_gate) as file:
            wanted, pattern, after, passing = file.read().split("\n")
    except (OSError, ValueError):
        return
    if call != wanted or not re.search(pattern, path) or (after and not glob.glob(after)):
        return
    for number in range(int(passing) + 1):
        try:
            mine = _open(f"{_gate}.{number}" if number < int(passing) else f"{_gate}.standing", _NEW, 0o600)
        except FileExistsError:
            continue
        if number == int(passing):
            os.write(mine, str(os.getpid()).encode())
        os.close(mine)
        break
    else:
        return
    while number == int(passing) and os.path.exists(_gate):
        time.sleep(0.02)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def _standing_open(path, flags, *arguments, **keywords):
    if flags & os.O_CREAT:
        _stand("open", os.fsdecode(path))
    return _open(path, flags, *arguments, **keywords)


def _standing_fsync(descriptor):
    _stand("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
    _fsync(descriptor)


def _standing_link(source, target, **keywords):
    _stand("link", os.fsdecode(target))
    _link(source, target, **keywords)


if _gate:
    os.open, os.fsync, os.link = _standing_open, _standing_fsync, _standing_link
