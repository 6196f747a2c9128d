"""Tables that fit the terminal: where the columns have no room, each row is shown as a paragraph."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Cell = str | Text


class Rows:
    """`wrap`: the column that may be broken into lines, if it keeps at least `room`. `right`: columns of numbers."""

    def __init__(self, *columns: str, wrap: str = "", room: int = 20, right: Sequence[str] = ()) -> None:
        self._columns = columns
        self._wrap = wrap
        self._room = room
        self._right = right
        self._rows: list[tuple[Text, ...]] = []

    def add(self, *cells: Cell) -> None:
        self._rows.append(tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._needed(console, options) <= options.max_width:
            yield self._table(self._columns)
            return
        for first, *others in self._rows:
            yield Text.assemble((f"{self._columns[0]} ", "bright_black"), first)
            known = [(name, cell) for name, cell in zip(self._columns[1:], others, strict=True) if _known(cell)]
            parts = (Text.assemble((f"{name} ", "bright_black"), cell) for name, cell in known)
            yield Padding(Text(" · ").join(parts), (0, 0, 0, 2))

    def _needed(self, console: Console, options: ConsoleOptions) -> int:
        """Returns the width of the table in which every column but one has all the room that it wants."""
        wide = options.update(width=10_000)
        whole = Measurement.get(console, wide, self._table(self._columns)).maximum
        if not self._wrap:
            return whole
        fixed = [name for name in self._columns if name != self._wrap]
        return min(whole, Measurement.get(console, wide, self._table(fixed)).maximum + 2 + self._room)

    def _table(self, columns: Sequence[str]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bright_black")
        for name in columns:
            table.add_column(name, no_wrap=name != self._wrap, justify="right" if name in self._right else "left")
        for row in self._rows:
            table.add_row(*(cell for name, cell in zip(self._columns, row, strict=True) if name in columns))
        return table


def _known(cell: Text) -> bool:
    return cell.plain not in ("", "–")
