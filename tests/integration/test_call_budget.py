"""The way of a change is short: so many calls from its bytes to its line, and to its confirmation."""

import threading
from statistics import median_low
from typing import Any, Self

from tests.harness.pipeline import PipelineRig

Event = tuple[str, str, str, int]
"""call or return, module, function, thread."""

INSERT_CALLS, INSERT_MODULES = 85, 25
KEEPALIVE = {"ReplicationSplitter._control", "ReplicationSplitter.data"}
"""Reads of a keepalive, which may arrive together with a change."""
FLUSH_CALLS, FLUSH_MODULES = 63, 17


class Trace:
    """The calls of functions of ours in new threads, while the block lasts."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)

    def _note(self, frame: Any, event: str, _argument: object) -> None:
        module = frame.f_code.co_filename.partition("/src/waltap")[2]
        if module and event in {"call", "return"}:
            self.events.append((event, module, frame.f_code.co_qualname, threading.get_ident()))

    def between(self, first: str, last: str, through: str) -> list[list[Event]]:
        """Return the calls from each call of ``first`` to the return of ``last``, where ``through`` is
        among them. What other threads do meanwhile is no part of the way."""
        found = []
        start: int | None = None
        for number, (event, _module, name, thread) in enumerate(self.events):
            if event == "call" and name == first:
                start = number
            elif event == "return" and name == last and start is not None:
                calls = [
                    each
                    for each in self.events[start:number]
                    if each[0] == "call" and each[2] not in KEEPALIVE and each[3] == thread
                ]
                if any(each[2] == through for each in calls):
                    found.append(calls)
                start = None
        return found


def usual(found: list[list[Event]]) -> tuple[int, int]:
    """Return the median number of calls, and of modules: a change may come in several reads."""
    return (
        median_low(map(len, found)),
        median_low(len({each[1] for each in calls}) for calls in found),
    )


def test_an_insert_takes_so_many_calls_to_its_line_and_to_its_confirmation(database, tmp_path):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    lines = tmp_path / "lines.jsonl"
    pipeline = PipelineRig(database, tmp_path, {"sink.type": "jsonl", "sink.path": str(lines)})
    with Trace() as trace, pipeline.running() as run:
        for number in range(1, 7):
            database.execute("INSERT INTO t VALUES (%s, 'x')", number)
            run.until(
                lambda n=number: lines.exists() and lines.read_text().count("\n") == n,  # type: ignore[misc]
                "the line",
            )
            run.until(lambda: run.engine.status().unflushed_ms is None, "its flush")
    calls, modules = usual(
        trace.between("StreamLoop._receive", "SinkWriter.write", "TransactionAssembler.runs")
    )
    assert calls <= INSERT_CALLS
    assert modules <= INSERT_MODULES
    calls, modules = usual(
        trace.between("SlotAdvancer.flush_if_due", "SlotAdvancer.flush_if_due", "SinkWriter.flush")
    )
    assert calls <= FLUSH_CALLS
    assert modules <= FLUSH_MODULES
