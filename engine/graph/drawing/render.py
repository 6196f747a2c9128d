"""Draws diagrams as text and Mermaid (here) and as SVG (`svg.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from engine.graph.drawing.diagram import Box, Diagram
from engine.graph.drawing.svg import svg


class Format(Enum):
    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


def render(diagrams: Sequence[Diagram], form: Format) -> str:
    match form:
        case Format.TEXT:
            return text(diagrams)
        case Format.MERMAID:
            return mermaid(diagrams)
        case Format.SVG:
            return svg(diagrams)


def text(diagrams: Sequence[Diagram]) -> str:
    return "\n\n".join("\n".join(_text_lines(diagram)) for diagram in diagrams) + "\n"


def _text_lines(diagram: Diagram) -> Iterator[str]:
    yield diagram.title
    for lane in diagram.lanes:
        indent = "  "
        if lane:
            yield f"  {lane}"
            indent = "    "
        for box in diagram.boxes:
            if box.lane != lane:
                continue
            chain = " → ".join(box.lines)
            yield f"{indent}{_name(box)}{': ' if chain else ''}{chain}"
            targets: dict[str, list[str]] = {}
            for arrow in diagram.arrows:
                if arrow.source == box.id:
                    targets.setdefault(arrow.label, []).append(arrow.target)
            for label, names in targets.items():
                yield f"{indent}  └─ {label} → {', '.join(names)}"


def mermaid(diagrams: Sequence[Diagram]) -> str:
    """Returns one flowchart, with each diagram as a subgraph."""
    lines = ["flowchart LR"]
    for number, diagram in enumerate(diagrams):
        lines += [f"  {line}" for line in _mermaid_lines(diagram, chr(ord("a") + number))]
    return "\n".join(lines) + "\n"


def _mermaid_lines(diagram: Diagram, prefix: str) -> Iterator[str]:
    names = {box.id: f"{prefix}{number}" for number, box in enumerate(diagram.boxes)}
    yield f'subgraph {prefix}["{_quoted(diagram.title)}"]'
    for number, lane in enumerate(diagram.lanes):
        boxes = [f'{names[box.id]}["{_label(box)}"]' for box in diagram.boxes if box.lane == lane]
        if lane:
            yield f'  subgraph {prefix}_{number}["{_quoted(lane)}"]'
            yield from (f"    {box}" for box in boxes)
            yield "  end"
        else:
            yield from (f"  {box}" for box in boxes)
    for arrow in diagram.arrows:
        yield f'  {names[arrow.source]} -->|"{_quoted(arrow.label)}"| {names[arrow.target]}'
    yield "end"


def _label(box: Box) -> str:
    return "<br/>".join([f"<b>{_quoted(_name(box))}</b>", *map(_quoted, box.lines)])


def _name(box: Box) -> str:
    return f"{box.id} {box.note}" if box.note else box.id


def _quoted(text: str) -> str:
    return text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
