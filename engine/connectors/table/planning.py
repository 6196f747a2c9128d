"""Decides which files of a table are folded. Pure: `folder.py` reads and writes them.

Files are folded in levels: many files of one level become one of the next, until a file is large. So a row is rewritten
once per level, and there are few files of each level and few that are not large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.connectors.table.folds import level_of

FAN = 32
"""So many files of a level are folded at once, or more."""
ROUND_FILES = 2_000
"""The most files of a round. Others wait for the next one."""


@dataclass(frozen=True)
class Visible:
    """A file that readers see."""

    name: str
    size: int

    @property
    def level(self) -> int:
        return level_of(self.name)


def large(file: Visible, target_bytes: int) -> bool:
    """Returns whether a file stays as it is. Two that are smaller make one that is not much larger than the target."""
    return file.size >= target_bytes / 2


def choose(files: Sequence[Visible], target_bytes: int) -> list[list[Visible]]:
    """Returns the groups of files that become one file each, oldest first."""
    small = [file for file in files if not large(file, target_bytes)]
    groups: list[list[Visible]] = []
    left = ROUND_FILES
    for level in sorted({file.level for file in small}):
        of_level = [file for file in small if file.level == level][:left]
        if len(of_level) >= FAN:
            groups += _cut(of_level, target_bytes)
            left -= len(of_level)
    return groups


def _cut(files: Sequence[Visible], target_bytes: int) -> list[list[Visible]]:
    """Cuts files of a level into groups of about the target's size. A last file alone waits for others."""
    groups: list[list[Visible]] = [[]]
    for file in files:
        if sum(other.size for other in groups[-1]) >= target_bytes:
            groups.append([])
        groups[-1].append(file)
    return [group for group in groups if len(group) > 1]
