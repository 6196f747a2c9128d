"""Makes every fsync of a Python process slow while a file exists. Chaos puts this folder on the job's module path.

The file's name is in `WEIR_CHAOS_SLOW`; it holds the seconds that an fsync takes.
"""

import os
import time

_flag = os.environ.get("WEIR_CHAOS_SLOW", "")
_fsync = os.fsync


def _slow_fsync(descriptor: int) -> None:
    try:
        with open(_flag) as file:
            time.sleep(float(file.read() or 0))
    except OSError:
        pass
    _fsync(descriptor)


if _flag:
    os.fsync = _slow_fsync
