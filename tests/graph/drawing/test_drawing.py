"""The three graphs as text, Mermaid and SVG (A10): golden for the page-view job and the seeds' example."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from assets.pageviews.job import job as page_views
from engine.api import BroadcastProcessFunction, MapStateDescriptor, StreamEnvironment
from engine.connectors.table import TableSink
from engine.graph.drawing.diagram import Diagram, Level, diagrams
from engine.graph.drawing.render import mermaid, text
from engine.graph.drawing.svg import svg
from tests.graph.test_graph import source, translate
from tests.graph.test_slot_sharing import seeds_example

SVG = "{http://www.w3.org/2000/svg}"
FIGURE = Path(__file__).parents[3] / "docs" / "figures" / "pageviews-graphs.svg"


def drawn(job: Callable[[StreamEnvironment], None], level: Level | None = None) -> list[Diagram]:
    env = StreamEnvironment(parallelism=2)
    job(env)
    return diagrams(env.graph, translate(env), level)


def separate(env: StreamEnvironment) -> None:
    seeds_example(env, shared=False)


def every_exchange(env: StreamEnvironment) -> None:
    env.set_parallelism(4)
    stream = source(env, splits=3)
    custom = stream.rescale().map(lambda row: row).set_parallelism(5).slot_sharing_group("heavy")
    custom.partition_custom(lambda key, n: 0, "app_id", "bytes").print(uid="audit").set_parallelism(2)
    summed = stream.broadcast().filter(lambda row: True).key_by("app_id").sum("bytes", uid='<sum> & "more"')
    summed.global_().sink_to(TableSink("t"), uid="out")


@pytest.mark.promise("A10")
def test_the_page_view_job_as_text() -> None:
    assert text(drawn(page_views)) == dedent(
        """\
        StreamGraph: 4 operators
          views ×2: source
            └─ forward → pv.combine
          pv.combine ×2: combine
            └─ hash(app_id) → pv
          pv ×2: window
            └─ forward → out
          out ×2: sink

        JobGraph: 2 vertices
          views ×2: source views → combine pv.combine
            └─ hash(app_id) → pv
          pv ×2: window pv → sink out

        ExecutionGraph: 4 subtasks in 2 slots
          slot 0
            views[0]
              └─ hash(app_id) → pv[0], pv[1]
            pv[0]: key groups [0, 64)
          slot 1
            views[1]
              └─ hash(app_id) → pv[0], pv[1]
            pv[1]: key groups [64, 128)
        """
    )


@pytest.mark.promise("A7", "A10")
def test_an_operator_with_two_inputs_begins_a_vertex_of_its_own() -> None:
    rules = MapStateDescriptor("rules", pa.string(), pa.int64())

    def job(env: StreamEnvironment) -> None:
        env.set_parallelism(2)
        stream = source(env, splits=2)
        connected = stream.connect(stream.broadcast(rules)).process(BroadcastProcessFunction(), uid="both")
        connected.print(uid="shown")

    assert text(drawn(job, Level.JOB)) == dedent(
        """\
        JobGraph: 2 vertices
          views ×2: source views
            └─ forward → both
            └─ broadcast → both
          both ×2: process both → sink shown
        """
    )
    assert mermaid(drawn(job, Level.STREAM)).count("-->") == 3


@pytest.mark.promise("A9", "A10")
def test_the_seeds_example_as_text_shared_and_in_slots_of_its_own() -> None:
    assert text(drawn(seeds_example)) == dedent(
        """\
        StreamGraph: 4 operators
          views ×1: source
            └─ rebalance → flat_map-1
          flat_map-1 ×2: flat_map
            └─ hash(app_id) → reduce
          reduce ×2: reduce
            └─ forward → sink
          sink ×2: sink

        JobGraph: 3 vertices
          views ×1: source views
            └─ rebalance → flat_map-1
          flat_map-1 ×2: flat_map flat_map-1
            └─ hash(app_id) → reduce
          reduce ×2: reduce → sink

        ExecutionGraph: 5 subtasks in 2 slots
          slot 0
            views[0]
              └─ rebalance → flat_map-1[0], flat_map-1[1]
            flat_map-1[0]
              └─ hash(app_id) → reduce[0], reduce[1]
            reduce[0]: key groups [0, 64)
          slot 1
            flat_map-1[1]
              └─ hash(app_id) → reduce[0], reduce[1]
            reduce[1]: key groups [64, 128)
        """
    )
    assert text(drawn(separate, Level.JOB)) == dedent(
        """\
        JobGraph: 3 vertices
          slot sharing group default
            views ×1: source views
              └─ rebalance → flat_map-1
          slot sharing group words
            flat_map-1 ×2: flat_map flat_map-1
              └─ hash(app_id) → reduce
          slot sharing group counts
            reduce ×2: reduce → sink
        """
    )
    assert text(drawn(separate, Level.EXECUTION)).startswith("ExecutionGraph: 5 subtasks in 5 slots\n")


@pytest.mark.promise("A10")
def test_the_page_view_job_as_mermaid() -> None:
    assert mermaid(drawn(page_views, Level.JOB)) == dedent(
        """\
        flowchart LR
          subgraph a["JobGraph: 2 vertices"]
            a0["<b>views ×2</b><br/>source views<br/>combine pv.combine"]
            a1["<b>pv ×2</b><br/>window pv<br/>sink out"]
            a0 -->|"hash(app_id)"| a1
          end
        """
    )


@pytest.mark.promise("A10")
def test_the_seeds_example_as_mermaid() -> None:
    assert mermaid(drawn(seeds_example, Level.EXECUTION)) == dedent(
        """\
        flowchart LR
          subgraph a["ExecutionGraph: 5 subtasks in 2 slots"]
            subgraph a_0["slot 0"]
              a0["<b>views[0]</b>"]
              a1["<b>flat_map-1[0]</b>"]
              a2["<b>reduce[0]</b><br/>key groups [0, 64)"]
            end
            subgraph a_1["slot 1"]
              a3["<b>flat_map-1[1]</b>"]
              a4["<b>reduce[1]</b><br/>key groups [64, 128)"]
            end
            a0 -->|"rebalance"| a1
            a0 -->|"rebalance"| a3
            a1 -->|"hash(app_id)"| a2
            a1 -->|"hash(app_id)"| a4
            a3 -->|"hash(app_id)"| a2
            a3 -->|"hash(app_id)"| a4
          end
        """
    )


def test_names_can_hold_what_mermaid_and_svg_use_themselves() -> None:
    assert '"<b>#lt;sum#gt; #amp; #quot;more#quot; ×4</b>' in mermaid(drawn(every_exchange, Level.STREAM))
    assert '<sum> & "more"' in "".join(ElementTree.fromstring(svg(drawn(every_exchange))).itertext())


@pytest.mark.promise("A10")
@pytest.mark.parametrize("job", [page_views, seeds_example, separate, every_exchange])
@pytest.mark.parametrize("level", Level)
def test_a_picture_shows_every_box_and_arrow_and_boxes_do_not_overlap(job: Callable[..., None], level: Level) -> None:
    (diagram,) = drawn(job, level)
    picture = ElementTree.fromstring(svg([diagram]))
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    boxes = [
        tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for rect in picture.iter(f"{SVG}rect")
        if rect.attrib["class"] == "box"
    ]
    assert len(boxes) == len(diagram.boxes)
    assert all(x > 0 and x + w < width and y > 0 and y + h < height for x, y, w, h in boxes)
    for n, (x, y, w, h) in enumerate(boxes):
        assert not any(x < x2 + w2 and x2 < x + w and y < y2 + h2 and y2 < y + h for x2, y2, w2, h2 in boxes[:n])
    paths = [path for path in picture.iter(f"{SVG}path") if path.attrib["class"] == "arrow"]
    assert len(paths) == len(diagram.arrows)
    for path in paths:
        x1, _, *_, x2, _ = map(float, re.findall(r"[\d.]+", path.attrib["d"]))
        assert x1 < x2, "from left to right"
    labels = [label.text for label in picture.iter(f"{SVG}text") if label.attrib.get("class") == "label"]
    assert sorted(labels) == sorted({arrow.edge: arrow.label for arrow in diagram.arrows}.values())


def test_the_picture_in_the_docs_is_what_weir_graph_draws() -> None:
    assert FIGURE.read_text() == svg(drawn(page_views)), f"weir graph assets.pageviews.job:job --format svg -o {FIGURE}"
