"""What a commit of one change to a Delta table may cost."""

import contextlib
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from py4j.clientserver import JavaClient
from py4j.java_gateway import GatewayClient
from tests.harness.changelog import Database, relation
from tests.harness.spark import Rig

import waltap_spark
from waltap_spark.state.modes import ModeRules

OURS: Final = str(Path(waltap_spark.__file__).parent)

# Delta describes the jobs that read its own log by these words; other jobs read or write rows.
LOG_JOBS: Final = ("Delta: ", "Compute snapshot", "Filtering files", "$anonfun$recordDeltaOp")


@dataclass
class Cost:
    """The cost of a block; `counted` fills it."""

    calls: int = 0
    trips: int = 0
    jobs: list[str] = field(default_factory=list)
    callers: Counter[str] = field(default_factory=Counter)
    """Function of ours → round trips that it made."""
    functions: Counter[str] = field(default_factory=Counter)

    @property
    def data_jobs(self) -> list[str]:
        """Return the jobs that read or write rows."""
        return [each for each in self.jobs if not any(word in each for word in LOG_JOBS)]


@contextlib.contextmanager
def counted(spark: Any) -> Iterator[Cost]:
    """Count calls of functions of `waltap_spark`, round trips and jobs of the block, in all threads.

    A garbage collector's messages to the JVM are no round trips of the code and do not count.
    """
    cost = Cost()
    lock = threading.Lock()
    before = _jobs(spark)

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
    new = _jobs(spark)
    cost.jobs = [text for number, text in sorted(new.items()) if number not in before]


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


def _jobs(spark: Any) -> dict[int, str]:
    """Return the number and description of each job that Spark remembers."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    found = {}
    for at in range(jobs.size()):
        job = jobs.apply(at)
        text = job.description()
        found[job.jobId()] = f"{text.get() if text.isDefined() else ''} {job.name()}"
    return found


# --- commits of one change --------------------------------------------------------------------------

PEOPLE = relation("public.people", [("id", "int4"), ("name", "text"), ("note", "text")])
PLACES = relation("public.places", [("id", "int4"), ("name", "text")])

COURSE: Final[dict[str, Callable[[Database], None]]] = {
    "insert": lambda db: db.insert(PEOPLE, ["100", "a", "long"]),
    "update": lambda db: db.update(PEOPLE, ["1"], name="b"),
    "update, note unsent": lambda db: db.update(PEOPLE, ["2"], ["note"], name="b"),
    "key change, note unsent": lambda db: db.update(PEOPLE, ["3"], ["note"], id="203"),
    "delete": lambda db: db.delete(PEOPLE, ["4"]),
}


def commits_cost(
    spark: Any, folder: Path, kind: str, most: Mapping[str, tuple[int, int, int]], *, history: str
) -> None:
    """Require that commits of one change cost at most so many calls, round trips, and jobs for data."""
    rig = Rig(folder, spark, kind, modes=ModeRules(history=(history,)))
    rig.db.insert(PEOPLE, *[[str(n), "a", "long"] for n in range(50)])
    rig.db.insert(PLACES, ["1", "a"])
    rig.follow()
    found = {}
    for change in most:
        COURSE[change](rig.db)
        rig.commit()
        waits = list(rig.log.manifests(rig.applier.state.mark))
        with counted(rig.spark) as cost:
            rig.applier.apply(waits)
        found[change] = cost.calls, cost.trips, len(cost.data_jobs)
    rig.check(PEOPLE)
    over = [
        change
        for change, costs in found.items()
        if any(cost > limit for cost, limit in zip(costs, most[change], strict=True))
    ]
    assert not over, found


# change → most calls, round trips, and jobs that are not Delta's own for its log
MOST: Final = {
    "insert": (400, 135, 2),
    "update": (460, 150, 9),
    "update, note unsent": (515, 235, 13),
    "key change, note unsent": (600, 325, 10),
    "delete": (460, 130, 2),
}


def test_a_commit_of_one_change_is_within_its_budget(
    delta: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first commit also says how far it is."""
    with caplog.at_level(logging.INFO):
        commits_cost(delta, tmp_path, "delta", MOST, history="keep")
    reported = [each.message for each in caplog.records if each.message.startswith("table ")]
    assert [each.partition(":")[0] for each in reported] == ["table 1 of 2", "table 2 of 2"]


def test_without_history_an_insert_is_one_job(delta: Any, tmp_path: Path) -> None:
    commits_cost(delta, tmp_path, "delta", {"insert": (400, 135, 1)}, history="none")
