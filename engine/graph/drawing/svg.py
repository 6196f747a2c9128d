"""Draws diagrams as SVG: layers from left to right, lanes as bands. They are readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

from engine.graph.drawing.diagram import Arrow, Box, Diagram

CHAR = 7.25
"""The width of a character in pixels; the font is monospaced, 12 px."""

LINE = 17
PADDING = 12
GAP = 18
MARGIN = 20
LANE_LABEL = 22

STYLE = """
  text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328 }
  .page { fill: #ffffff } .lane { fill: #f3f5f8; stroke: #d9dee4 } .box { fill: #e4eefb; stroke: #5b86b8 }
  .title { font-weight: bold; font-size: 14px } .name { font-weight: bold } .faint { fill: #656d76 }
  .arrow { fill: none; stroke: #7d8793; stroke-width: 1.3 } .head { fill: #7d8793 }
  .label { fill: #8a4b08 } .under { fill: #ffffff } .on-lane { fill: #f3f5f8 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .page { fill: #0d1117 } .lane { fill: #161b22; stroke: #30363d }
    .box { fill: #1c2c44; stroke: #5b86b8 } .faint { fill: #9198a1 } .arrow { stroke: #8b949e } .head { fill: #8b949e }
    .label { fill: #f0b26b } .under { fill: #0d1117 } .on-lane { fill: #161b22 }
  }
"""


def svg(diagrams: Sequence[Diagram]) -> str:
    """Draws the diagrams one below the other."""
    layouts = [_Layout(diagram) for diagram in diagrams]
    width = max(layout.width for layout in layouts)
    parts: list[str] = []
    top = 0.0
    for layout in layouts:
        parts += [f'<g transform="translate(0 {top:g})">', *layout.draw(width), "</g>"]
        top += layout.height
    marker = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    size = f'width="{width:g}" height="{top:g}" viewBox="0 0 {width:g} {top:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}</style>\n{marker}'
    return "\n".join([head, '<rect class="page" width="100%" height="100%"/>', *parts, "</svg>\n"])


@dataclass(frozen=True)
class _Place:
    left: float
    top: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


class _Layout:
    """Places the boxes of a diagram. A box stands right of all boxes that send to it; lanes lie one below the other."""

    def __init__(self, diagram: Diagram) -> None:
        self._diagram = diagram
        self._lanes = {box.id: box.lane for box in diagram.boxes}
        self._columns = self._layers()
        self._lefts = self._column_lefts()
        self._places: dict[str, _Place] = {}
        self._bands: list[tuple[str, float, float]] = []
        top = MARGIN + 30.0
        for lane in diagram.lanes:
            top = self._place_lane(lane, top)
        self.height = top + MARGIN - GAP
        self.width = max(self._right + MARGIN, 2 * MARGIN + len(diagram.title) * CHAR * 1.2)

    @cached_property
    def _right(self) -> float:
        return max(place.left + place.width for place in self._places.values()) + PADDING

    def _layers(self) -> dict[str, int]:
        columns: dict[str, int] = {}

        def column(box: str) -> int:
            if box not in columns:
                before = [arrow.source for arrow in self._diagram.arrows if arrow.target == box]
                columns[box] = max((column(other) + 1 for other in before), default=0)
            return columns[box]

        for box in self._diagram.boxes:
            column(box.id)
        return columns

    def _column_lefts(self) -> list[float]:
        """Returns the left edge of each column. The gap after a column has room for its longest outgoing label."""
        lefts, left = [], MARGIN + PADDING + 0.0
        for column in range(max(self._columns.values()) + 1):
            lefts.append(left)
            leaving = [len(a.label) for a in self._diagram.arrows if self._columns[a.source] == column]
            left += self._column_width(column) + max(leaving, default=0) * CHAR + 3 * GAP
        return lefts

    def _column_width(self, column: int) -> float:
        return max(_width(box) for box in self._diagram.boxes if self._columns[box.id] == column)

    def _place_lane(self, lane: str, top: float) -> float:
        """Stacks the boxes of each column in the middle of the lane; returns where the next lane begins."""
        stacks: dict[int, list[Box]] = {}
        for box in self._diagram.boxes:
            if box.lane == lane:
                stacks.setdefault(self._columns[box.id], []).append(box)
        heights = {c: sum(map(_height, boxes)) + GAP * (len(boxes) - 1) for c, boxes in stacks.items()}
        inner, label = max(heights.values()), LANE_LABEL if lane else 0
        for column, boxes in stacks.items():
            y = top + label + PADDING + (inner - heights[column]) / 2
            for box in boxes:
                place = _Place(self._lefts[column], y, self._column_width(column), _height(box))
                self._places[box.id] = place
                y += place.height + GAP
        bottom = top + label + inner + 2 * PADDING
        if lane:
            self._bands.append((lane, top, bottom - top))
        return bottom + GAP

    def draw(self, width: float) -> list[str]:
        parts = [f'<text class="title" x="{MARGIN}" y="{MARGIN + 12}">{escape(self._diagram.title)}</text>']
        for lane, top, height in self._bands:
            size = f'width="{width - 2 * MARGIN:g}" height="{height:g}"'
            parts.append(f'<rect class="lane" x="{MARGIN}" y="{top:g}" {size} rx="6"/>')
            parts.append(f'<text class="faint" x="{MARGIN + PADDING}" y="{top + LINE:g}">{escape(lane)}</text>')
        parts += [self._curve(arrow) for arrow in self._diagram.arrows]
        for box in self._diagram.boxes:
            parts += _draw_box(box, self._places[box.id])
        first = {arrow.edge: arrow for arrow in reversed(self._diagram.arrows)}
        parts += [self._label(arrow) for arrow in first.values()]
        return parts

    def _ends(self, arrow: Arrow) -> tuple[float, float, float, float]:
        source, target = self._places[arrow.source], self._places[arrow.target]
        return source.left + source.width, source.middle, target.left, target.middle

    def _curve(self, arrow: Arrow) -> str:
        x1, y1, x2, y2 = self._ends(arrow)
        bend = (x2 - x1) / 2
        curve = f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
        return f'<path class="arrow" marker-end="url(#head)" d="{curve}"/>'

    def _label(self, arrow: Arrow) -> str:
        """Draws a label on its curve: in the middle, or beyond the lane's border if the curve leads to another lane."""
        x1, y1, x2, y2 = self._ends(arrow)
        t = 0.5 if self._lanes[arrow.source] == self._lanes[arrow.target] else 0.65
        x = x1 + (x2 - x1) * (1.5 * t * (1 - t) + t**3)
        y = y1 + (y2 - y1) * t * t * (3 - 2 * t)
        width = len(arrow.label) * CHAR + 6
        place = f'x="{x - width / 2:g}" y="{y - LINE / 2:g}" width="{width:g}" height="{LINE}"'
        text = f'<text class="label" text-anchor="middle" x="{x:g}" y="{y + 4:g}">{escape(arrow.label)}</text>'
        return f'<rect class="{"under on-lane" if self._bands else "under"}" {place}/>{text}'


def _draw_box(box: Box, place: _Place) -> list[str]:
    size = f'width="{place.width:g}" height="{place.height:g}"'
    left, line = place.left + PADDING, place.top + LINE + 3
    note = f' <tspan class="faint">{escape(box.note)}</tspan>' if box.note else ""
    parts = [
        f'<rect class="box" x="{place.left:g}" y="{place.top:g}" {size} rx="5"/>',
        f'<text x="{left:g}" y="{line:g}"><tspan class="name">{escape(box.id)}</tspan>{note}</text>',
    ]
    for text in box.lines:
        line += LINE
        parts.append(f'<text x="{left:g}" y="{line:g}">{escape(text)}</text>')
    return parts


def _width(box: Box) -> float:
    longest = max(len(box.id) + len(box.note) + 1, *map(len, box.lines), 0)
    return longest * CHAR + 2 * PADDING


def _height(box: Box) -> float:
    return LINE * (1 + len(box.lines)) + PADDING
