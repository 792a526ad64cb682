"""The cost of a commit in Spark: calls in our code, round trips to the JVM, and jobs that read or write rows."""

import contextlib
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from py4j.clientserver import JavaClient
from py4j.java_gateway import GatewayClient
from py4j.protocol import Py4JJavaError
from tests.harness.changelog import Database, relation
from tests.harness.spark import Rig

import waltap_spark
from waltap_spark.state.modes import ModeRules

OURS: Final = str(Path(waltap_spark.__file__).parent)

# How plans name files with rows; those of Delta's own log have an index of their own.
ROWS: Final = re.compile(r"Location: (?!DeltaLogFileIndex)|BatchScan ")


@dataclass
class Cost:
    """The cost of a block; `counted` fills it."""

    calls: int = 0
    trips: int = 0
    jobs: dict[int, str] = field(default_factory=dict)
    """Number → description."""
    data_jobs: list[int] = field(default_factory=list)
    """The jobs that read or write rows; others read Delta's log, or send small tables to executors."""
    callers: Counter[str] = field(default_factory=Counter)
    """Function of ours → round trips that it made."""
    functions: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def counted(spark: Any) -> Iterator[Cost]:
    """Count calls of functions of `waltap_spark`, round trips and jobs of the block, in all threads.

    A garbage collector's messages to the JVM are no round trips of the code and do not count.
    """
    cost = Cost()
    lock = threading.Lock()
    newest = _newest(spark)

    def profiled(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            name = frame.f_code.co_qualname
            if name.endswith(("<genexpr>", "<lambda>")):
                return
            with lock:
                cost.calls += 1
                cost.functions[name] += 1

    with pytest.MonkeyPatch.context() as patch:
        for kind in (GatewayClient, JavaClient):
            if "send_command" in vars(kind):
                patch.setattr(kind, "send_command", _counting(kind.send_command, cost, lock))
        threading.setprofile(profiled)
        sys.setprofile(profiled)
        try:
            yield cost
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    cost.jobs, plans = _jobs_and_plans(spark, newest)
    for number in cost.jobs:
        read, written = _records(spark, number)
        if written or (read and ROWS.search(plans.get(number, ""))):
            cost.data_jobs.append(number)


def _counting(send: Any, cost: Cost, lock: threading.Lock) -> Any:
    def counting(client: Any, command: str, *more: Any, **named: Any) -> Any:
        if not command.startswith("m\nd\n"):  # an object of the JVM is no longer used
            with lock:
                cost.trips += 1
                cost.callers[_caller()] += 1
        return send(client, command, *more, **named)

    return counting


def _caller() -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            return f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        frame = frame.f_back
    return "tests"


def _lists(spark: Any) -> tuple[tuple[Any, str], tuple[Any, str]]:
    """Return the jobs and the queries that Spark remembers, the newest first, each with the name of its number."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    queries = spark._jsparkSession.sharedState().statusStore().executionsList()
    return (context.statusStore().jobsList(None), "jobId"), (queries.reverse(), "executionId")


def _newest(spark: Any) -> list[int]:
    return [getattr(each.head(), number)() if each.size() else -1 for each, number in _lists(spark)]


def _since(each: Any, number: str, newest: int) -> Iterator[Any]:
    """Give what came behind the ``newest`` one: Spark remembers a thousand, and to ask for each takes seconds."""
    for at in range(each.size()):
        found = each.apply(at)
        if getattr(found, number)() <= newest:
            return
        yield found


def _jobs_and_plans(spark: Any, newest: Sequence[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Return the description of each job that came behind the ``newest`` ones, and its plan."""
    jobs, queries = (_since(*each, last) for each, last in zip(_lists(spark), newest, strict=True))
    found, plans = {}, {}
    for job in jobs:
        text = job.description()
        found[job.jobId()] = f"{text.get() if text.isDefined() else ''} {job.name()}"
    for query in queries:
        numbers = query.jobs().keysIterator()
        while numbers.hasNext():
            plans[numbers.next()] = query.physicalPlanDescription()
    return dict(sorted(found.items())), plans


def _records(spark: Any, number: int) -> tuple[int, int]:
    """Return the records that a job read and wrote."""
    store = spark.sparkContext._jsc.sc().statusStore()
    stages = store.job(number).stageIds()
    every = []
    for at in range(stages.size()):
        try:
            every.append(store.lastStageAttempt(stages.apply(at)))
        except Py4JJavaError as error:
            # of a thousand stages Spark forgets those first that it skipped: they read and wrote nothing
            if "No stage with id" not in str(error.java_exception):
                raise
    return sum(each.inputRecords() for each in every), sum(each.outputRecords() for each in every)


# --- commits of one change --------------------------------------------------------------------------

PEOPLE: Final = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
PLACES: Final = relation("public.places", [("id", "int4"), ("name", "text")])

CHANGES: Final[dict[str, Callable[[Database], None]]] = {
    "insert": lambda db: db.insert(PEOPLE, ["100", "a", "long"]),
    "update": lambda db: db.update(PEOPLE, ["1"], name="b"),
    "update, note unsent": lambda db: db.update(PEOPLE, ["2"], ["note"], name="b"),
    "key change, note unsent": lambda db: db.update(PEOPLE, ["3"], ["note"], id="203"),
    "delete": lambda db: db.delete(PEOPLE, ["4"]),
}
"""Changes of different rows, so that they can share a table."""


@contextlib.contextmanager
def filled(spark: Any, folder: Path, table_format: str, history: str = "keep") -> Iterator[Rig]:
    """Have a rig with rows for `CHANGES`, and compare its rows at the end."""
    rig = Rig(folder, spark, table_format, modes=ModeRules(history=(history,)))
    rig.db.insert(PEOPLE, *[[str(n), "a", "long"] for n in range(50)])
    rig.db.insert(PLACES, ["1", "a"])
    rig.follow()
    rig.opened.remove(rig)  # which each test would close
    yield rig
    rig.check(PEOPLE)
    rig.opened.append(rig)
    rig.close_all()


def cost(rig: Rig, change: str) -> tuple[int, int, int]:
    """Return calls, round trips and jobs for rows of a commit of one of `CHANGES`."""
    CHANGES[change](rig.db)
    rig.commit()
    waits = list(rig.log.manifests(rig.applier.state.log_position))
    with counted(rig.spark) as found:
        rig.applier.apply(waits)
    return found.calls, found.trips, len(found.data_jobs)
