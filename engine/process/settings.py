"""Reads the configuration file `weir.toml`: this machine's defaults, which a job or a command line may override.

The file is in the current directory, or where WEIR_CONFIG says. Only this module reads it. Its values go into
`MasterLaunch`, so that the JobMaster and every slot have the same ones, wherever they run.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from engine.core.errors import WeirError
from engine.store.bucket import is_bucket

FILE = "weir.toml"


Positive = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True):
    """The table `[weir]`. A relative `store` is relative to the file's folder."""

    parallelism: Positive | None = None
    store: str | None = None
    max_slots: Positive | None = None


def read_settings() -> Settings:
    named = os.environ.get("WEIR_CONFIG")
    path = Path(named or FILE)
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        if named is None:
            return Settings()
        raise WeirError(f"WEIR_CONFIG names {path}, and there is no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WeirError(f"the configuration file {path} can't be read: {error}") from error
    settings = _checked(path, content)
    if settings.store is not None and not is_bucket(settings.store):
        beside = str(path.absolute().parent / settings.store)
        settings = msgspec.structs.replace(settings, store=beside)
    return settings


def _checked(path: Path, content: dict[str, Any]) -> Settings:
    known = Settings.__struct_fields__
    table = content.get("weir", {})
    unknown = [name for name in content if name != "weir"]
    unknown += [name for name in table if name not in known] if isinstance(table, dict) else ["weir"]
    if unknown:
        raise WeirError(f"{path}: {unknown[0]!r} is not known; the table [weir] has the keys {', '.join(known)}")
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as error:
        raise WeirError(f"{path}, table [weir]: {error}") from error
