"""Runs `weir` in a process of its own, as a terminal does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WEIR = [sys.executable, "-c", "from engine.cli.main import main; main()"]


def weir(*arguments: str, store: Path | str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "WEIR_STORE": str(store), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run([*WEIR, *arguments], capture_output=True, text=True, env=environ, timeout=300)
