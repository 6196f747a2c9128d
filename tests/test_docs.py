"""The examples of docs/state.md are jobs that run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

import engine.api
from engine.api import StreamEnvironment
from engine.connectors.table import TableSink
from engine.testing import ListSource, run

PAGE = Path(__file__).parents[1] / "docs" / "state.md"


def test_the_examples_of_the_page_on_state_do_what_it_says() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    def job(env: StreamEnvironment) -> None:
        known: dict[str, Any] = {**vars(engine.api), "pa": pa, "env": env}
        known["JsonSource"] = lambda path, watch: ListSource([{"app": "a", "limit": 2}])
        numbers = ListSource([{"n": n, "key": "a"} for n in range(250)])
        known["stream"] = env.from_source(numbers, "n long, key string", uid="numbers")
        known["events"] = env.from_source(ListSource([{"app": "a"}] * 5), "app string", uid="events")
        for number, example in enumerate(examples):
            definitions, stream = example.rstrip().rsplit("\n", 1)
            exec(definitions, known)
            eval(stream, known).sink_to(TableSink(str(number)), uid=f"out {number}")

    result = run(job)
    assert result.rows("0")[-1] == {"key": "a", "seen": 250}
    assert [row["batch"] for row in result.rows("1")] == [list(range(100)), list(range(100, 200))]
    assert result.rows("2") == [{"app": "a", "seen": seen} for seen in (3, 4, 5)]
