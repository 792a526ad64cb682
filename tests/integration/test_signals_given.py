"""Signals that are given to a running pipeline: by `Engine.signal`, and by ``waltap signal``."""

import json
import subprocess
import threading
from pathlib import Path

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.shop import Shop

from waltap.changes.transactions.position import parse_lsn
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.notifications import Notification
from waltap.ports.signals import SignalAnswer, SignalCall, SignalUnusable
from waltap.ports.specs import SignalActionSpec

WAIT_S = 60.0
READ_T = {"data-collections": ["public.t"]}


class Marks:
    """A plugin with an action."""

    def __init__(self) -> None:
        self.calls: list[SignalCall] = []

    @hookimpl
    def register_signal_actions(self):
        return [SignalActionSpec(name="mark", summary="Marks.", factory=self.act)]

    def act(self, call: SignalCall) -> None:
        label = call.arguments.get("label")
        if not isinstance(label, str):
            raise SignalUnusable("label must be a text")
        if label == "raise":
            raise RuntimeError("of the action")
        if label == "stop":
            call.stop()
        self.calls.append(call)
        call.notify("MARKED", label=label)


pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text);"
    "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 25);",
    settings={
        "signal.data.collection": "public.signals",
        "snapshot.mode": "no_data",
        "incremental.snapshot.chunk.size": 10,
    },
)


def test_a_signal_given_to_the_engine_reads_a_table(pipeline: PipelineRig) -> None:
    with pipeline.running() as run:
        answer = run.engine.signal("execute-snapshot", READ_T, identifier="mine").result(WAIT_S)
        assert answer == SignalAnswer("mine", taken=True)
        run.until(lambda: len(pipeline.destination.ids("t", "r")) == 25, "the rows")
    assert run.notices.signals == [("execute-snapshot", "mine")]


BAD: list[tuple[str, str | dict[str, object], str]] = [
    ("explode", "", "'explode' is not known"),
    ("schema-changes", {"changes": []}, "keeps none"),
    ("mark", {"label": 3}, "label must be a text"),
    ("mark", {"label": "raise"}, "RuntimeError: of the action"),
    ("execute-snapshot", "{", "not JSON"),
    ("execute-snapshot", {"data-collections": 3}, "must be a list"),
    ("execute-snapshot", "x" * (2 << 20), "larger than"),
]


def test_a_bad_signal_is_answered_with_its_fault_and_stops_nothing(
    pipeline: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_notification: Notification) -> None:
        raise RuntimeError("of the listener")

    told: list[Notification] = []
    with pipeline.running(Marks()) as run:
        run.engine.on_notification(told.append)
        run.engine.on_notification(broken)  # it stops nothing, either
        for kind, data, why in BAD:
            told.clear()
            answer = run.engine.signal(kind, data, identifier="bad").result(WAIT_S)
            assert not answer.taken
            ignored = [(n.identifier, n.additional_data) for n in told if n.kind == "IGNORED"]
            about = {"connector_name": "p", "signal_type": kind, "reason": answer.reason}
            assert ignored == [("bad", about)]
            assert why in answer.reason
        assert run.engine.signal("log").result(WAIT_S).taken
        pipeline.database.execute("INSERT INTO t VALUES (100)")
        run.until(lambda: pipeline.destination.ids("t", "c") == [100], "the row")
    assert "Engine.on_notification: " in caplog.text


def test_an_action_of_a_plugin_is_called_with_data_and_position(pipeline: PipelineRig) -> None:
    marks, told = Marks(), list[Notification]()
    pipeline.settings["signal.data.collection"] = None  # nothing that is no snapshot needs a table
    with pipeline.running(marks) as run:
        run.engine.on_notification(told.append)
        assert run.engine.signal("mark", {"label": "x"}, identifier="m-1").result(WAIT_S).taken
        assert run.engine.signal("log", {"message": "at {}"}).result(WAIT_S).taken
    (call,) = marks.calls
    assert (call.pipeline, call.signal.identifier, call.arguments) == ("p", "m-1", {"label": "x"})
    assert parse_lsn(call.position) > 0
    (marked,) = [n for n in told if n.kind == "MARKED"]
    assert (marked.aggregate_type, marked.identifier) == ("mark", "m-1")
    assert run.notices.signals == [("mark", "m-1"), ("log", run.notices.signals[1][1])]


def test_an_action_may_stop_the_pipeline(pipeline: PipelineRig) -> None:
    with pipeline.running(Marks()) as run:
        assert run.engine.signal("mark", {"label": "stop"}).result(WAIT_S).taken
        run.join()
    assert run.engine.state == "stopped"


def test_signals_from_many_threads_are_all_answered(pipeline: PipelineRig) -> None:
    answers: list[SignalAnswer] = []

    def give(number: int) -> None:
        future = run.engine.signal("log", {"message": "at {}"}, identifier=str(number))
        answers.append(future.result(WAIT_S))

    with pipeline.running() as run:
        threads = [threading.Thread(target=give, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert sorted(int(answer.identifier) for answer in answers) == list(range(20))
    assert all(answer.taken for answer in answers)


def test_a_signal_after_the_end_is_refused(pipeline: PipelineRig) -> None:
    with pipeline.running() as run:
        run.stop()
        late = run.engine.signal("log", {}).result(WAIT_S)
    assert late.reason == "the pipeline has ended"


def test_a_signal_that_was_cancelled_is_not_acted_on(pipeline: PipelineRig) -> None:
    with pipeline.running() as run:
        held, free = pipeline.destination.hold()
        pipeline.database.execute("INSERT INTO t VALUES (100)")
        run.until(held.is_set, "the engine to be held")
        cancelled = run.engine.signal("execute-snapshot", READ_T, identifier="not this")
        assert cancelled.cancel()
        kept = run.engine.signal("log", {}, identifier="but this")
        free.set()
        assert kept.result(WAIT_S).taken
    assert run.notices.signals == [("log", "but this")]


# --- the command ---------------------------------------------------------------------------------


def waltap_signal(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Give a signal to the pipeline ``p``, whose state is in ``folder``/state."""
    shop = Shop(folder, **{"waltap.state.dir": "state", "database.user": "x"})
    shop.name = "p"
    return shop.waltap("signal FILE", *arguments)


def test_the_command_reaches_a_running_pipeline_without_its_database(
    pipeline: PipelineRig, tmp_path: Path
) -> None:
    with pipeline.running() as run:
        done = waltap_signal(
            tmp_path, "execute-snapshot", json.dumps(READ_T), "--id", "cli-1", "--wait", "60"
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "p: signal cli-1 (execute-snapshot) is acted on\n"
        run.until(lambda: len(pipeline.destination.ids("t", "r")) == 25, "the rows")
        bad = waltap_signal(tmp_path, "explode", "--json", "--wait", "60")
    assert bad.returncode == 1
    answer = json.loads(bad.stdout)
    assert answer["taken"] is False
    assert "'explode' is not known" in answer["reason"]


def test_the_command_tells_that_nothing_runs(tmp_path: Path) -> None:
    done = waltap_signal(tmp_path, "log")
    assert done.returncode == 1
    assert "WT-6201" in done.stderr
    assert "waltap run FILE" in " ".join(done.stderr.split())
