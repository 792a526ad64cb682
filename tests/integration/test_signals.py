"""Signals that a running pipeline gets by `Engine.signal`, by channels and by ``waltap signal``; notifications, also those
to a real HTTP server."""

import base64
import hashlib
import hmac
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.harness.http_receiver import Receiver
from tests.harness.pipeline import WAIT_S, PipelineRig, until
from tests.harness.shop import Shop
from tests.harness.simulated import raising

from waltap.base.plugin_errors import LibraryMissing
from waltap.changes.transactions.position import parse_lsn
from waltap.errors import ConnectionLost, SinkError
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.notifications import Notification
from waltap.ports.notifications.webhook_channel import (
    WebhookDown,
    WebhookNotifications,
    WebhookProperties,
)
from waltap.ports.signals import Signal, SignalCall, SignalUnusable
from waltap.ports.signals.inbox import FileSignals
from waltap.ports.specs import NotificationChannelSpec, SignalActionSpec, SignalChannelSpec
from waltap_postgres.snapshot.chunk_query import PostgresChunks

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
    signals=True,
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 25);",
    settings={
        "snapshot.mode": "no_data",
        "incremental.snapshot.chunk.size": 10,
    },
)


BAD: list[tuple[str, str | dict[str, object], str]] = [
    ("explode", "", "'explode' is not known"),
    ("schema-changes", {"changes": []}, "keeps none"),
    ("mark", {"label": 3}, "label must be a text"),
    ("mark", {"label": "raise"}, "RuntimeError: of the action"),
    ("execute-snapshot", "{", "not JSON"),
    ("execute-snapshot", {"data-collections": 3}, "must be a list"),
    ("execute-snapshot", "x" * (2 << 20), "larger than"),
]


def test_a_bad_signal_is_answered_with_its_fault_and_stops_nothing(pipeline, caplog):
    def broken(_notification: Notification) -> None:
        raise RuntimeError("of the listener")

    reported: list[Notification] = []
    with pipeline.running(Marks()) as run:
        run.engine.on_notification(reported.append)
        run.engine.on_notification(broken)  # it stops nothing, either
        for kind, data, why in BAD:
            reported.clear()
            answer = run.engine.signal(kind, data, identifier="bad").result(WAIT_S)
            assert not answer.accepted
            ignored = [(n.identifier, n.additional_data) for n in reported if n.kind == "IGNORED"]
            about = {"connector_name": "p", "signal_type": kind, "reason": answer.reason}
            assert ignored == [("bad", about)]
            assert why in answer.reason
        assert run.engine.signal("log").result(WAIT_S).accepted
        pipeline.database.execute("INSERT INTO t VALUES (100)")
        run.until(lambda: pipeline.destination.ids("t", "c") == [100], "the row")
    assert "Engine.on_notification: " in caplog.text


def test_an_action_of_a_plugin_is_called_with_data_and_position(pipeline):
    marks, reported = Marks(), list[Notification]()
    pipeline.settings["signal.data.collection"] = None  # nothing that is no snapshot needs a table
    with pipeline.running(marks) as run:
        run.engine.on_notification(reported.append)
        assert run.engine.signal("mark", {"label": "x"}, identifier="m-1").result(WAIT_S).accepted
        assert run.engine.signal("log", {"message": "at {}"}).result(WAIT_S).accepted
    (call,) = marks.calls
    assert (call.pipeline, call.signal.identifier, call.arguments) == ("p", "m-1", {"label": "x"})
    assert parse_lsn(call.position) > 0
    (marked,) = [n for n in reported if n.kind == "MARKED"]
    assert (marked.aggregate_type, marked.identifier) == ("mark", "m-1")
    assert run.notices.signals == [("mark", "m-1"), ("log", run.notices.signals[1][1])]


def test_a_log_signal_logs_its_message_or_that_it_has_none_and_the_position(pipeline, caplog):
    given = ("", "{}", '{"message": ""}', '{"message": " "}', '{"message": null}', '{"text": "x"}')
    with caplog.at_level(logging.INFO), pipeline.running() as run:
        assert run.engine.signal("log", {"message": "we are at {}, said ops"}).result(WAIT_S)
        for data in given:
            answer = run.engine.signal("log", data).result(WAIT_S)
            assert (answer.accepted, answer.reason) == (True, ""), data
    [said] = [each for each in caplog.messages if each.startswith("we are at ")]
    assert re.fullmatch(r"we are at [0-9A-F]+/[0-9A-F]+, said ops", said)
    logged = [each for each in caplog.messages if each.startswith("a log signal")]
    assert len(logged) == len(given)
    for line in logged:
        assert parse_lsn(line.removeprefix("a log signal without a message, at ")) > 0


def test_an_action_may_stop_the_pipeline_and_a_signal_after_the_end_is_refused(pipeline):
    with pipeline.running(Marks()) as run:
        assert run.engine.signal("mark", {"label": "stop"}).result(WAIT_S).accepted
        run.join()
        late = run.engine.signal("log", {}).result(WAIT_S)
    assert run.engine.state == "stopped"
    assert late.reason == "the pipeline has ended"


def test_a_signal_that_was_cancelled_is_not_acted_on(pipeline):
    with pipeline.running() as run:
        held, free = pipeline.destination.hold()
        pipeline.database.execute("INSERT INTO t VALUES (100)")
        run.until(held.is_set, "the engine to be held")
        cancelled = run.engine.signal("execute-snapshot", READ_T, identifier="not this")
        assert cancelled.cancel()
        kept = run.engine.signal("log", {}, identifier="but this")
        free.set()
        assert kept.result(WAIT_S).accepted
    assert run.notices.signals == [("log", "but this")]


# --- channels: signals that come by other ways than the signal table, and notifications --------------------------


class Kept:
    """A plugin with a channel of either kind; ``faults`` are what they raise."""

    def __init__(self) -> None:
        self.sent: list[Notification] = []
        self.waiting: list[Signal] = []
        self.faults: list[BaseException] = []
        self.closed = 0

    @hookimpl
    def register_notification_channels(self):
        spec = NotificationChannelSpec(name="kept", summary="Keeps.", factory=lambda _: self)
        return [spec]

    @hookimpl
    def register_signal_channels(self):
        return [SignalChannelSpec(name="given", summary="Gives.", factory=lambda _: self)]

    def send(self, notification: Notification) -> None:
        if self.faults:
            raise self.faults[0]
        self.sent.append(notification)

    def poll(self) -> list[Signal]:
        if self.faults:
            raise self.faults[0]
        found, self.waiting = self.waiting, []
        return found

    def close(self) -> None:
        self.closed += 1

    def reported(self, aggregate: str) -> list[str]:
        return [n.kind for n in self.sent if n.aggregate_type == aggregate]


CHANNELS = pytest.mark.pipeline(
    settings={
        "signal.enabled.channels": "file,given",
        "signal.poll.interval.ms": 20,
        "notification.enabled.channels": "kept,log",
    }
)


@pytest.fixture
def kept(pipeline) -> Kept:
    pipeline.settings["signal.file"] = str(pipeline.folder / "asks.txt")
    return Kept()


def ask(folder: Path, name: str = "ad-hoc-1", *tables: str) -> None:
    data = {"data-collections": list(tables) or ["public.t"]}
    line = json.dumps({"id": name, "type": "execute-snapshot", "data": data})
    with (folder / "asks.txt").open("a") as file:
        file.write(line + "\n")


def completed(kept: Kept) -> bool:
    return "COMPLETED" in kept.reported("Incremental Snapshot")


@CHANNELS
def test_a_signal_of_the_file_reads_a_table_and_every_step_is_notified(pipeline, kept, tmp_path):
    ask(tmp_path)  # before the start: it is not lost
    with pipeline.running(kept) as run:
        run.until(lambda: completed(kept), "the snapshot's end")
        run.until(lambda: len(pipeline.destination.ids("t", "r")) == 25, "the rows")
    assert pipeline.destination.ids("t", "r") == list(range(1, 26))
    assert run.notices.signals == [("execute-snapshot", "ad-hoc-1")]
    assert kept.reported("Initial Snapshot") == ["SKIPPED"]
    assert kept.reported("Incremental Snapshot") == [
        "STARTED", *["IN_PROGRESS"] * 3, "TABLE_SCAN_COMPLETED", "COMPLETED",
    ]  # fmt: skip
    mine = [n for n in kept.sent if n.aggregate_type == "Incremental Snapshot"]
    assert {n.identifier for n in mine} == {"ad-hoc-1"}
    second, scanned = mine[2], mine[4]
    assert second.additional_data == {
        "connector_name": "p",
        "data_collections": "public.t",
        "current_collection_in_progress": "public.t",
        "maximum_key": "25",
        "last_processed_key": "20",
    }
    assert scanned.additional_data is not None
    assert scanned.additional_data["status"] == "SUCCEEDED"
    assert scanned.additional_data["total_rows_scanned"] == "25"
    assert kept.closed >= 2


def rows_that_stay_in_memory(run, folder):
    """Have a signal's rows delivered to a sink that makes nothing durable any more."""
    database, destination = run.pipeline.database, run.pipeline.destination
    database.execute("INSERT INTO t VALUES (100)")
    run.until(lambda: destination.position, "a durable position")
    destination.flush_all = lambda durable=destination.position: durable
    database.execute("INSERT INTO t VALUES (101)")
    ask(folder)
    run.until(lambda: len(destination.ids("t", "r")) == 27, "the rows")


@CHANNELS
def test_a_signal_whose_request_was_not_stored_comes_again(pipeline, database, kept, tmp_path):
    """Rows of another request that are not durable hold it back."""
    database.psql("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (7)")
    destination = pipeline.destination
    with pytest.raises(SinkError, match="is down"), pipeline.running(kept) as run:
        rows_that_stay_in_memory(run, tmp_path)
        ask(tmp_path, "other", "public.u")
        run.until(lambda: len(run.notices.signals) == 2, "the signal")
        destination.before_write = raising(SinkError("the sink is down"))
        database.execute("INSERT INTO t VALUES (102)")
        run.join()
    del destination.flush_all
    destination.before_write = lambda _batch: None
    with pipeline.running(kept) as run:
        run.until(lambda: destination.ids("u", "r") == [7], "the rows")
    assert not list(tmp_path.glob("asks*"))


@CHANNELS
def test_a_signal_that_was_stored_is_not_acted_on_again(pipeline, kept, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(FileSignals, "confirm", raising(OSError(30, "read-only")))
        ask(tmp_path)
        with pipeline.running(kept) as run:
            run.until(lambda: completed(kept), "the snapshot's end")
    read, faults = Path.read_bytes, [OSError(5, "it fails at first")]

    def read_later(path):
        if path.suffix == ".taken" and faults:
            raise faults.pop()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_later)
    with pipeline.running(kept) as run:
        run.until(lambda: not list(tmp_path.glob("asks*")), "the end of the file")
        assert run.notices.signals == []
        ask(tmp_path)  # alike, and meant
        run.until(lambda: run.notices.signals == [("execute-snapshot", "ad-hoc-1")], "it")


@CHANNELS
@pytest.mark.parametrize("end", ["a stop", "an interrupt", "a failure"])
def test_a_signal_that_the_end_of_a_run_stored_is_no_reason_to_ignore_one_alike(
    pipeline, kept, tmp_path, end, monkeypatch
):
    error = {"an interrupt": KeyboardInterrupt(), "a failure": SinkError("it is down")}.get(end)
    with pytest.raises(type(error)) if error else nullcontext(), pipeline.running(kept) as run:
        rows_that_stay_in_memory(run, tmp_path)
        ask(tmp_path, "other")
        asked = run.engine.signal("execute-snapshot", READ_T)
        for number in range(3, 5):  # of a channel that does not repeat them
            kept.waiting.append(Signal(f"given-{number}", "execute-snapshot", json.dumps(READ_T)))
            run.until(lambda count=number + 1: len(run.notices.signals) == count, "the signals")
        assert not asked.done()  # a crash would lose it
        del pipeline.destination.flush_all
        if end == "a stop":
            run.engine.stop()
        elif end == "an interrupt":
            kept.faults = [error]
            run.join()
        else:
            with monkeypatch.context() as patch:
                patch.setattr(pipeline.destination, "before_write", raising(error))
                pipeline.database.execute("INSERT INTO t VALUES (102)")
                run.join()
    kept.faults = []
    assert asked.result(0).accepted
    assert not list(tmp_path.glob("asks*"))
    ask(tmp_path, "other")
    with pipeline.running(kept) as run:
        run.until(lambda: not list(tmp_path.glob("asks*")), "the end of the file")
        assert run.notices.signals == [("execute-snapshot", "other")]


@CHANNELS
def test_rows_that_a_lost_link_kept_from_the_sink_are_read_again(
    pipeline, kept, tmp_path, monkeypatch
):
    """The end of that connection stores the signal that asked for them, and no progress."""
    chunk, destination = PostgresChunks.chunk, pipeline.destination
    read: list[object] = []

    def second_fails(*given, **named):
        read.append(given)
        if len(read) == 2:
            del destination.flush_all
            raise ConnectionLost("the link is gone")
        return chunk(*given, **named)

    with pipeline.running(kept) as run:
        rows_that_stay_in_memory(run, tmp_path)
        monkeypatch.setattr(PostgresChunks, "chunk", second_fails)
        ask(tmp_path, "other")
        run.until(lambda: kept.reported("Incremental Snapshot").count("COMPLETED") == 2, "its end")
    assert sorted(destination.ids("t", "r"))[:4] == [1, 1, 2, 2]


@CHANNELS
def test_a_channel_that_cannot_forget_its_signals_holds_no_other_back(
    pipeline, kept, tmp_path, monkeypatch
):
    monkeypatch.setattr(FileSignals, "confirm", raising(OSError(30, "read-only")))
    with pipeline.running(kept) as run:
        ask(tmp_path)
        run.until(lambda: completed(kept), "the snapshot's end")
        kept.waiting.append(Signal("given-1", "log", "{}"))
        run.until(lambda: ("log", "given-1") in run.notices.signals, "the other channel's")


@CHANNELS
def test_rows_of_the_signal_table_are_no_signals_without_the_channel_source(
    pipeline, kept, tmp_path
):
    with pipeline.running(kept) as run:
        pipeline.signal("execute-snapshot", "t", name="by-table")
        run.until(lambda: pipeline.destination.of("signals"), "the row")
        ask(tmp_path, "by-file")
        run.until(lambda: completed(kept), "the snapshot's end")
    assert run.notices.signals == [("execute-snapshot", "by-file")]


@CHANNELS
def test_a_channel_that_fails_is_reported_once_and_stops_nothing(pipeline, database, kept, caplog):
    kept.faults = [OSError(os.strerror(5))]
    with pipeline.running(kept) as run:
        database.execute("INSERT INTO t VALUES (100)")
        run.until(lambda: pipeline.destination.ids("t", "c") == [100], "the row")
        kept.faults = []
        kept.waiting = [Signal("9", "execute-snapshot", '{"data-collections": ["public.t"]}')]
        run.until(lambda: completed(kept), "the snapshot's end")
    reported = [record for record in caplog.records if "channel " in record.getMessage()]
    assert sorted(record.args[0] for record in reported) == ["given", "kept"]


# --- the command ---------------------------------------------------------------------------------


def waltap_signal(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    shop = Shop(folder, **{"waltap.state.dir": "state", "database.user": "x"})
    shop.name = "p"
    return shop.waltap("signal FILE", *arguments)


def test_the_command_reaches_a_running_pipeline_without_its_database(pipeline, tmp_path):
    with pipeline.running() as run:
        done = waltap_signal(
            tmp_path, "execute-snapshot", json.dumps(READ_T), "--id", "cli-1", "--wait", "60"
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "p: signal cli-1 (execute-snapshot) was accepted\n"
        run.until(lambda: len(pipeline.destination.ids("t", "r")) == 25, "the rows")
        bad = waltap_signal(tmp_path, "explode", "--json", "--wait", "60")
    assert bad.returncode == 1
    answer = json.loads(bad.stdout)
    assert answer["taken"] is False
    assert "'explode' is not known" in answer["reason"]


# --- the notification channel ``webhook`` --------------------------------------------------------------


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture(autouse=True)
def _closes_late(monkeypatch) -> None:
    monkeypatch.setattr("waltap.ports.notifications.webhook_channel.CLOSE_S", 90.0)


def channel(receiver: Receiver, **options: object) -> WebhookNotifications:
    given = {f"notification.webhook.{k.replace('_', '.')}": v for k, v in options.items()}
    properties = {"notification.webhook.url": receiver.url, **given}
    return WebhookNotifications(WebhookProperties.model_validate(properties))


def numbered(number: int) -> Notification:
    return Notification(
        identifier=str(number), aggregate_type="Initial Snapshot", kind="IN_PROGRESS"
    )


def identifiers(receiver: Receiver) -> list[str]:
    return [document["id"] for document in receiver.documents()]


@pytest.mark.parametrize(
    ("secret", "key"),
    [("a long secret", b"a long secret"), ("whsec_c2VjcmV0LTc=", b"secret-7"), (None, b"")],
    ids=["text", "base64", "none"],
)
def test_a_request_is_signed_over_its_id_time_and_body(receiver, secret, key):
    given = {"notification.webhook.secret": secret} if secret else {}
    properties = {
        "notification.webhook.url": receiver.url,
        "headers": {"notification.webhook.header.Authorization": "Bearer b-1"},
        **given,
    }
    sent = WebhookNotifications(WebhookProperties.model_validate(properties))
    sent.send(numbered(7))
    sent.close()
    ((headers, body),) = receiver.taken
    assert headers["content-type"] == "application/json"
    assert headers["authorization"] == "Bearer b-1"
    if not secret:
        assert "webhook-signature" not in headers
        return
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"


@pytest.mark.parametrize(
    ("answer", "times", "tries"),
    [
        (None, 2, 3),
        ((500, {}), 2, 3),
        ((503, {"Retry-After": "0"}), 2, 3),
        ((429, {}), 2, 3),
        ((408, {}), 2, 3),
        ((500, {}), 3, 0),  # they come to an end
        *(((status, {"Location": "/hook"}), 1, 0) for status in (301, 400, 401, 404, 410)),
    ],
)
def test_what_may_pass_is_tried_again_with_the_same_id(receiver, caplog, answer, times, tries):
    """And what is refused for good is not."""
    receiver.answers.extend([answer] * times)
    sent = channel(receiver, max_retries=2)
    sent.send(numbered(1))
    sent.send(numbered(2))
    until(lambda: "2" in identifiers(receiver), "the second notification")
    assert len(receiver.refused) == times
    if tries:
        sent.close()
        (first, _), _ = receiver.taken
        assert {headers["webhook-id"] for headers, _ in receiver.refused} == {first["webhook-id"]}
    else:
        with pytest.raises(WebhookDown, match="1 notifications were not taken"):
            sent.close()
        assert f"it answers {answer[0]}" in caplog.text
        sent.close()  # shows nothing again
    assert identifiers(receiver) == (["1", "2"] if tries else ["2"])
    assert sent.lost == (0 if tries else 1)


def test_a_full_queue_holds_nobody_up_and_what_it_lacks_is_counted(receiver, caplog):
    receiver.hold.clear()
    sent = channel(receiver, queue_size=5)
    for number in range(50):
        sent.send(numbered(number))  # nobody takes them, and this ends
    assert sent.lost == 45
    receiver.hold.set()
    until(lambda: len(receiver.taken) == 5, "what the queue held")
    with pytest.raises(WebhookDown, match="45 notifications were not taken"):
        sent.close()
    assert identifiers(receiver) == ["0", "1", "2", "3", "4"]
    assert [r.error_code for r in caplog.records if r.levelno == logging.WARNING] == ["WT-4201"]


def test_close_does_not_wait_for_an_address_that_hangs(receiver, monkeypatch):
    monkeypatch.setattr("waltap.ports.notifications.webhook_channel.CLOSE_S", 0.05)
    receiver.hold.clear()
    sent = channel(receiver)
    for number in range(3):
        sent.send(numbered(number))
    with pytest.raises(WebhookDown, match="3 notifications were not taken"):
        sent.close()


def test_without_httpx_the_extra_is_named(receiver, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    # As in an installation without httpx: the client is not imported yet.
    monkeypatch.delitem(sys.modules, "waltap.base.network.http", raising=False)
    with pytest.raises(LibraryMissing, match=r"pip install 'waltap\[webhook\]'"):
        channel(receiver)


def test_what_is_no_address_is_refused():
    for url in ("", "ftp://h/x", "https:/h", "http://", "hooks.example.com"):
        with pytest.raises(ValueError, match="pattern"):
            WebhookProperties.model_validate({"notification.webhook.url": url})


@pytest.mark.needs_postgres
def test_a_pipeline_streams_on_while_its_webhook_is_down(database, tmp_path, caplog):
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    settings = {"notification.enabled.channels": "webhook", "notification.webhook.max.retries": 0}
    pipeline = PipelineRig(database, tmp_path, settings)
    with (
        Receiver(started=False) as late,
        pipeline.running(**{"notification.webhook.url": late.url}) as run,
    ):
        run.until(lambda: run.engine.status().notifications_lost == 4, "the snapshot's steps")
        database.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: pipeline.destination.ids("t", "c") == [3], "the stream")
        late.start()
        run.engine.signal("nonsense")
        run.until(lambda: late.taken, "a notification behind the outage")
        assert run.engine.status().notifications_lost == 4
    assert [d["aggregate_type"] for d in late.documents()] == ["Signal"]
    assert sum("does not take notifications" in r.getMessage() for r in caplog.records) == 1
