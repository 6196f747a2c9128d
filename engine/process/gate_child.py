"""The process of a job's gates. It stays warm: what judges import is loaded once.

It reads one question a line from its standard input and writes one answer a line. Whatever judges print goes to its
standard error. It ends with its input, which the JobMaster holds, also while a judge hangs.
"""

from __future__ import annotations

import os
import queue
import sys
import threading

import msgspec

from engine.process.gate_judging import answer, judge_at
from engine.protocol.gate import GateQuestion
from engine.store.opening import open_store


class GateSetup(msgspec.Struct, frozen=True):
    """What the process has to know. `stores`: by sink, the address of the store of its target."""

    stores: dict[str, str]
    judges: list[str]


def main() -> None:
    setup = msgspec.json.decode(sys.argv[1], type=GateSetup)
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(questions,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a judge that prints must not write into the answers
    stores = {sink: open_store(address) for sink, address in setup.stores.items()}
    for path in setup.judges:
        try:
            judge_at(path)
        except Exception as error:
            print(f"the judge {path} can't be made: {error!r}; the next question says so", file=sys.stderr)
    while True:
        question = msgspec.json.decode(questions.get(), type=GateQuestion)
        found = answer(question, stores[question.sink].read)
        answers.write(msgspec.json.encode(found) + b"\n")
        answers.flush()


def _read(questions: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        questions.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
