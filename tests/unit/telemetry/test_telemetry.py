"""What is seen of a pipeline: log lines, lineage, progress, metrics, and who may ask for them."""

import dataclasses
import io
import json
import logging
import re
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.harness.pipeline import until

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch
from waltap.cli.log_output import FIELDS, as_text, configure
from waltap.cli.reference.pages import mbeans
from waltap.config.layers import read_tables
from waltap.config.resolve import resolve
from waltap.errors import ConfigurationError, ConnectionLost
from waltap.plugins.host import Host
from waltap.ports.sink.roles import DownstreamProgress, DownstreamTable
from waltap.services.monitor.counts import SnapshotTableProgress, TableStatus
from waltap.services.monitor.metrics import METRICS
from waltap.services.monitor.server import (
    RequestAccess,
    address_of,
    is_loopback,
    load_or_make_token,
)
from waltap.services.monitor.status import PartitionStatus, PipelineStatus
from waltap.services.telemetry import lifecycle
from waltap.services.telemetry.lifecycle import LifeCycleLog
from waltap.services.telemetry.lineage import LineageEvent, LineageSender, _destination
from waltap.services.telemetry.progress import ProgressDisplay

# --- log lines ------------------------------------------------------------------------------------


def status(end_lsn: int, **counted: Any) -> PipelineStatus:
    """What an engine shows 90 s after its start, with ``end_lsn`` written."""
    at = Position(end_lsn)
    partition = PartitionStatus(
        name="", received_lsn=end_lsn, written=at, durable=at, confirmed_lsn=0, server_lsn=None,
        lag_bytes=None, lag_ms=None,
    )  # fmt: skip
    return PipelineStatus(
        pipeline="p", at_ms=90_000, started_ms=0, state="streaming", state_since_ms=0,
        partitions=(partition,), **counted,
    )  # fmt: skip


@pytest.fixture
def logged() -> Iterator[Callable[..., list[str]]]:
    """Return what begins a log of a form and level, in a list of lines."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level

    def begin(form: str = "json", level: str = "DEBUG", **labels: str) -> list[str]:
        written: list[str] = []
        configure(written.append, form=form, level=level).labels = labels
        return written

    yield begin
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def lines(logged) -> list[str]:
    return logged()


def test_a_line_is_one_object_with_the_fields_of_the_vocabulary(lines):
    log = logging.getLogger("waltap.test")
    log.warning("slot is lost", extra={"slot": "s", "lsn": "0/1", "row": "a row value"})
    (line,) = lines
    document = json.loads(line)
    assert document.pop("ts").endswith("Z")
    assert document == {
        "level": "warning",
        "logger": "waltap.test",
        "message": "slot is lost",
        "slot": "s",
        "lsn": "0/1",
    }


def test_an_exception_is_one_field_and_the_line_stays_one(lines):
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("waltap.test").exception("failed")
    (line,) = lines
    assert "\n" not in line
    assert json.loads(line)["exception"] == "ValueError: a\nb"


def test_text_lines_are_short_and_those_of_json_have_the_labels_of_the_profile(logged):
    text, labelled = logged("text", "INFO"), logged("json", "INFO", team="data")
    log = logging.getLogger("waltap.test")
    log.info("streaming", extra={"pipeline": "p"})
    log.debug("too much")
    assert text == ["info: streaming pipeline=p"]
    assert [json.loads(line)["labels"] for line in labelled] == [{"team": "data"}]


def test_the_vocabulary_shadows_no_attribute_of_a_record():
    record = logging.LogRecord("n", 20, "p", 1, "m", None, None)
    assert not set(FIELDS) & set(vars(record))


def snapshot(host: Host, event: str, table: str, rows: int, total: int | None) -> None:
    reported = {"event": event, "table": table, "rows": rows, "total": total, "kind": "initial"}
    host.notify("on_snapshot", pipeline="p", **reported)


def test_the_life_of_a_pipeline_is_logged(lines, monkeypatch):
    monkeypatch.setattr(lifecycle, "THROUGHPUT_EVERY_S", 0.0)
    host = Host(discover=False)
    found_now = [status(0)]
    host.register(LifeCycleLog(lambda: found_now[-1]), "log")
    host.notify("on_slot", pipeline="p", event="created", slot="s", lsn=16)
    snapshot(host, "progress", "t", 5, None)
    snapshot(host, "table_completed", "t", 9, 9)
    for end in (1, 2):
        found_now.append(status(end, events=3 * end))
        batch = Batch(parts=[], position=Position(end), events=3)
        host.notify("on_batch", pipeline="p", batch=batch, seconds=0.1)
    host.notify("on_failure", pipeline="p", error=ConnectionLost("cut"), retried=True)
    host.notify("on_failure", pipeline="p", error=KeyError("row"), retried=False)
    found = [json.loads(line) for line in lines]
    assert [d["message"] for d in found] == [
        "slot created",
        "snapshot table completed",
        "throughput",
        "failed, trying again: cut",
        "failed: KeyError",
    ]
    assert (found[1]["table"], found[1]["rows"]) == ("t", 9)
    assert (found[2]["events"], found[2]["lsn"]) == (6, "0/2")
    assert [d.get("error_code") for d in found[3:]] == ["WT-2001", "WT-9000"]


def test_a_snapshot_of_many_tables_logs_how_many_are_read(lines):
    host = Host(discover=False)
    host.register(LifeCycleLog(lambda: status(0)), "log")
    tables = [f"public.t{number}" for number in range(1000)]
    snapshot(host, "started", "", 0, None)
    for table in tables:
        for event, rows in (("table_started", 0), ("table_completed", 3)):
            snapshot(host, event, table, rows, 3)
    snapshot(host, "completed", "", 0, None)
    found = [each for line in lines if (each := json.loads(line))["level"].lower() != "debug"]
    assert found[0]["message"] == "snapshot started"
    assert sum("table" in d["message"] for d in found) < 60
    assert any("tables are read" in d["message"] for d in found)
    assert found[-1]["message"] == "snapshot completed"
    assert (found[-1]["tables"], found[-1]["rows"]) == (1000, 3000)


def test_a_run_ends_with_one_line_of_what_it_did(caplog):
    host = Host()
    last = status(0x300, events=4, snapshot_rows=2, transactions=1)
    host.register(LifeCycleLog(lambda: last), "life-cycle log")
    with caplog.at_level(logging.INFO):
        host.notify("on_state", pipeline="p", state="reconnecting", detail="")
        host.notify("on_state", pipeline="p", state="stopped", detail="")
    (line,) = [as_text(record) for record in caplog.records if record.message == "delivered"]
    assert line == (
        "info: delivered pipeline=p lsn=0/300 changes=2 snapshot_rows=2 transactions=1 seconds=90.0"
    )


# --- lineage --------------------------------------------------------------------------------------


TABLES = 50


def relation(number: int) -> Relation:
    return Relation(oid=number, schema="s", table=f"t{number}", identity="d", columns=())


class Server:
    """Takes events while it is ``there``."""

    def __init__(self, *, there: bool) -> None:
        self.there, self.refused = there, threading.Event()
        self.taken: list[tuple[str, list[str]]] = []

    def take(self, happening: LineageEvent, shapes: Collection[Relation]) -> None:
        if not self.there:
            self.refused.set()
            raise ConnectionError
        self.taken.append((happening.kind, [each.table for each in shapes]))


def change_often(delivery: LineageSender) -> None:
    """A run of ten thousand schema changes."""
    delivery.put(LineageEvent(kind="START"))
    for number in range(10_000):
        delivery.shape(relation(number % TABLES))
        delivery.put(LineageEvent(kind="RUNNING"))


@pytest.mark.parametrize(
    ("sink", "namespace"),
    [("kafka:h:1,h:2", "kafka://h:1"), ("changelog:s3://k:geheim@b/x?y=geheim", "s3://b/x")]
    + [("null", "waltap:null")],
)
def test_a_destination_has_its_address_and_no_secret(sink, namespace):
    source = {"type": "postgres", "database.dbname": "d"}
    found = resolve(read_tables({"source": source}), Host(), sink=sink).sink
    assert _destination(found.spec.name, found.properties) == namespace


def test_an_outage_takes_no_more_room_the_longer_it_lasts_and_nothing_is_lost():
    server = Server(there=False)
    with LineageSender(server.take, retry_s=0.01) as delivery:
        change_often(delivery)
        assert server.refused.wait(120)
        assert [each.kind for each in delivery.waiting] == ["START", "RUNNING"]
        server.there = True
        until(lambda: not delivery.waiting, "what waits to arrive")
        delivery.put(LineageEvent(kind="COMPLETE"))
    kinds = [kind for kind, _ in server.taken]
    assert (kinds[0], kinds[-1]) == ("START", "COMPLETE")
    named = [name for _, names in server.taken for name in names]
    assert sorted(named) == sorted(f"t{number}" for number in range(TABLES))


def test_what_never_arrived_is_counted_at_the_end(caplog):
    server = Server(there=False)
    with LineageSender(server.take) as delivery:
        change_often(delivery)
        delivery.put(LineageEvent(kind="COMPLETE"))
    assert len(delivery.waiting) == 3
    assert server.taken == []
    reported = [each.getMessage() for each in caplog.records]
    assert reported == [
        "OpenLineage: an event was not delivered, and is tried again: ConnectionError",
        "OpenLineage: 3 events of this run were not delivered",
    ]


def test_shapes_go_with_the_next_event_and_with_no_other():
    server = Server(there=True)
    with LineageSender(server.take) as delivery:
        delivery.put(LineageEvent(kind="START"))
        until(lambda: not delivery.waiting, "the start")
        delivery.put(LineageEvent(kind="RUNNING"))
        until(lambda: not delivery.waiting, "nothing to show")
        delivery.shape(relation(1))
        delivery.put(LineageEvent(kind="RUNNING"))
        until(lambda: not delivery.waiting, "the table")
        delivery.put(LineageEvent(kind="COMPLETE"))
    assert server.taken == [("START", []), ("RUNNING", ["t1"]), ("COMPLETE", [])]


@pytest.mark.parametrize("lost", [False, True])
def test_a_table_that_is_new_while_an_event_is_on_its_way_is_reported_at_once(lost):
    server, on_its_way, may_arrive = Server(there=True), threading.Event(), threading.Event()

    def send(happening: LineageEvent, shapes: Collection[Relation]) -> None:
        if not on_its_way.is_set():
            on_its_way.set()
            assert may_arrive.wait(120)
            if lost:
                raise ConnectionError
        server.take(happening, shapes)

    with LineageSender(send, retry_s=0.01) as delivery:
        delivery.shape(relation(1))
        delivery.put(LineageEvent(kind="RUNNING"))
        assert on_its_way.wait(120)
        delivery.shape(relation(2))
        for _ in range(3):
            delivery.put(LineageEvent(kind="RUNNING"))
        assert [each.kind for each in delivery.waiting] == ["RUNNING", "RUNNING"]
        may_arrive.set()
        until(lambda: not delivery.waiting, "what waits to arrive")
    reported = [("RUNNING", ["t1", "t2"])] if lost else [("RUNNING", ["t1"]), ("RUNNING", ["t2"])]
    assert server.taken == reported


# --- the display of progress ----------------------------------------------------------------------


NONE = PipelineStatus(pipeline="p", at_ms=0, started_ms=0, state="checking", state_since_ms=0)


def of_table(name: str, rows: int, estimate: int) -> PipelineStatus:
    return dataclasses.replace(
        NONE, snapshot=(SnapshotTableProgress(table=name, rows=rows, estimate=estimate),)
    )


class Screen:
    """A display on a terminal, what the engine shows it, and what is drawn."""

    def __init__(self) -> None:
        self.drawn, self.status = io.StringIO(), NONE
        console = Console(
            file=self.drawn, force_terminal=True, width=120, no_color=True, highlight=False
        )
        self.display = ProgressDisplay(console, lambda: self.status)
        self.host = Host(discover=False)
        self.host.register(self.display, "progress")
        self.display.start()

    def state(self, state: str, detail: str = "") -> None:
        self.host.notify("on_state", pipeline="p", state=state, detail=detail)

    def table(self, event: str, table: str, rows: int, total: int | None) -> None:
        reported = {"event": event, "table": table, "rows": rows, "total": total, "kind": "initial"}
        self.host.notify("on_snapshot", pipeline="p", **reported)

    def end(self, status: PipelineStatus | None = None) -> str:
        """Stop the pipeline with this last status; return all that was drawn."""
        self.status = status or self.status
        self.state("stopped")
        self.display.stop()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.drawn.getvalue())


@pytest.fixture
def screen() -> Screen:
    return Screen()


def test_a_table_shows_rows_estimate_and_then_the_count(screen):
    screen.table("table_started", "public.big", 0, 2000)
    screen.status = of_table("public.big", 1500, 2000)
    screen.table("table_completed", "public.big", 2100, 2100)
    last = [line for line in screen.end().split("\r") if "public.big" in line][-1]
    assert "2,100 rows" in last
    assert "✓" in last


def test_an_estimate_that_was_too_low_grows(screen):
    screen.table("table_started", "public.t", 0, 10)
    assert "500 of ~501" in screen.end(of_table("public.t", 500, 10))


def test_an_empty_table_leaves_no_line(screen):
    screen.table("table_started", "public.empty", 0, None)
    screen.table("table_completed", "public.empty", 0, 0)
    assert "public.empty" not in screen.end().split("\r")[-1]


def test_trouble_is_said_above_the_bars(screen):
    screen.state("reconnecting", "link [cut]\nmore")
    assert "reconnecting: link [cut]" in screen.end()


RATES = ((3, 1234.0), (10, 5.0))


@pytest.mark.parametrize(
    ("counted", "reported", "rate"),
    [
        ({"state": "stopped", "events": 1041, "snapshot_rows": 999}, "42 changes 0/s", False),
        ({"events": 42, "events_per_second": RATES}, "42 changes 1,234/s", True),
        ({"events": 42, "snapshot_rows": 42, "events_per_second": RATES}, "0 changes 0/s", False),
    ],
)
def test_streamed_changes_are_counted_with_their_rate_and_snapshot_rows_are_not(
    screen, counted, reported, rate
):
    screen.state("streaming", "0/1")
    drawn = screen.end(dataclasses.replace(NONE, **counted))
    assert reported in drawn
    assert ("1,234/s" in drawn) is rate
    if counted.get("snapshot_rows") == 999:
        assert "42 changes in 0 transactions and 999 snapshot rows in 0.0 s" in drawn


@pytest.mark.parametrize(("end", "reported"), [("stopped", True), ("failed", False)])
def test_what_a_run_did_is_its_last_line_and_a_failed_start_did_nothing(screen, end, reported):
    screen.status = dataclasses.replace(NONE, state=end)
    screen.state("checking")
    screen.state(end)
    screen.display.stop()
    drawn = screen.drawn.getvalue()
    assert ("0 changes in 0 transactions" in drawn.strip().splitlines()[-1]) is reported
    assert ("transactions" in drawn) is reported


# --- who may ask over HTTP ------------------------------------------------------------------------


HERE = {"host": "127.0.0.1:8083"}
JSON = {"content-type": "application/json"}


def test_loopback():
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.8.8.8")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "db.example.com", "")))


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", HERE, None),
        ("GET", {"host": "[::1]:8083"}, None),
        ("GET", {"host": "evil.example.com"}, 421),
        ("GET", {"host": "["}, 421),
        ("GET", HERE | {"origin": "http://127.0.0.1:8083"}, None),
        ("GET", HERE | {"origin": "http://evil.example.com"}, 403),
        ("GET", HERE | {"origin": "http://["}, 403),
        ("POST", HERE | JSON, 401),
        ("POST", HERE | JSON | {"authorization": "Bearer hidden-77"}, None),
        ("POST", HERE | JSON | {"authorization": "Bearer "}, 401),
        ("POST", HERE | JSON | {"authorization": "Bearer hidden-7"}, 401),
        ("DELETE", HERE, 401),
        ("HEAD", HERE, None),
        ("POST", HERE | {"content-type": "text/plain"}, 415),
    ],
)
def test_a_page_elsewhere_reaches_nothing(method, headers, status):
    """Nor does another user of this machine change anything."""
    access = RequestAccess("127.0.0.1", lambda: "hidden-77", open_reads=True)
    refusal = access.refusal(method, headers, None, open_to_all=False)
    assert (refusal and refusal[0]) == status


@pytest.mark.parametrize(
    ("bearer", "token", "status"),
    [
        ("", None, 401), ("", "wrong-one", 401), ("", "hidden-77", None), ("hidden-77", None, None),
        ("hidden-7", None, 401),
    ],
)  # fmt: skip
def test_beyond_this_machine_a_token_is_needed(bearer, token, status):
    access = RequestAccess("0.0.0.0", lambda: "hidden-77", open_reads=False)
    asked = {"host": "db.example.com:8083"}
    asked |= {"authorization": f"Bearer {bearer}"} if bearer else {}
    refusal = access.refusal("GET", asked, token, open_to_all=False)
    assert (refusal and refusal[0]) == status
    assert access.refusal("GET", asked, token, open_to_all=True) is None


def test_the_token_of_the_state_folder_is_its_owners_and_stays(tmp_path):
    path = tmp_path / "state/http-token"
    token = load_or_make_token(path)
    assert len(token) >= 32
    assert load_or_make_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("\n")  # a full disk
    assert len(load_or_make_token(path)) >= 32
    access = RequestAccess("127.0.0.1", lambda: "", open_reads=True)
    for headers in (HERE | JSON, HERE | JSON | {"authorization": "Bearer "}):
        refusal = access.refusal("POST", headers, "", open_to_all=True)
        assert (refusal and refusal[0]) == 401


def test_addresses():
    assert address_of("127.0.0.1:8083") == ("127.0.0.1", 8083)
    assert address_of(":9") == ("127.0.0.1", 9)
    assert address_of("[::1]:9") == ("::1", 9)
    for text in ("8083", "host", "h:x", "h:99999", ""):
        with pytest.raises(ConfigurationError):
            address_of(text)


# --- metrics --------------------------------------------------------------------------------------


METERED = 500


def status_of(most: int) -> PipelineStatus:
    def table(number: int) -> TableStatus:
        return TableStatus(
            table=f"t{number}", creates=number, updates=1, deletes=1, truncates=1, reads=1,
            commit_lsn=1, committed_ms=1,
        )  # fmt: skip

    stopped = DownstreamTable(table="t7", lsn=1, failed="broken")
    downstream = tuple(DownstreamTable(table=f"t{n}", lsn=1) for n in range(METERED) if n != 7)
    return PipelineStatus(
        pipeline="p", at_ms=1, started_ms=1, state="streaming", state_since_ms=1,
        tables=tuple(map(table, range(METERED))),
        snapshot=tuple(
            SnapshotTableProgress(table=f"t{n}", rows=n, estimate=n, complete=n != 3) for n in range(METERED)
        ),
        downstream=(
            DownstreamProgress(
                stage="spark", lsn=1, lag_bytes=0, current=True, committed_ms=1, applied_ms=1,
                tables=(stopped, *downstream), problem="",
            ),
        ),
        metric_tables=most,
    )  # fmt: skip


@pytest.mark.parametrize("most", [0, 100])
def test_only_the_busiest_tables_have_series_of_their_own(most):
    shown: Counter[str] = Counter()
    named: dict[str, set[str]] = {}
    reported = status_of(most)
    for metric in METRICS:
        for labels, _ in metric.read(reported):
            if "table" in labels:
                shown[metric.name] += 1
                named.setdefault(metric.name, set()).add(labels["table"])
    assert sum(shown.values()) <= 15 * max(most, 1)
    if most:
        busiest = {f"t{n}" for n in range(METERED - most, METERED)}
        assert named["waltap_table_events"] == named["waltap_table_lsn"] == busiest
        assert "t3" in named["waltap_snapshot_table_rows"], "it is read now"
    assert "t7" in named["waltap_downstream_table_stopped"]


TRAITS = "io/debezium/pipeline/metrics/traits"
COMMON = (
    f"{TRAITS}/CommonEventMetricsMXBean",
    f"{TRAITS}/QueueMetricsMXBean",
    f"{TRAITS}/SchemaMetricsMXBean",
)
OF = {
    "snapshot": (*COMMON, f"{TRAITS}/SnapshotMetricsMXBean"),
    "streaming": (
        *COMMON,
        f"{TRAITS}/ConnectionMetricsMXBean",
        f"{TRAITS}/StreamingMetricsMXBean",
        f"{TRAITS}/StreamingStatisticsMXBean",
        "io/debezium/metrics/activity/ActivityMonitoringMXBean",
    ),
}


def attributes(jar: zipfile.ZipFile, classes: tuple[str, ...]) -> set[str]:
    """Return what the interfaces have getters for, of their constant pools."""
    found = set()
    for name in classes:
        pool = jar.read(f"{name}.class")
        found |= {
            m.decode()
            for m in re.findall(rb"(?:get|is)([A-Z][A-Za-z0-9]{2,})(?=[\x00-\x1f])", pool)
        }
    return found


@pytest.mark.parametrize("context", ["snapshot", "streaming"])
def test_the_tables_have_what_the_real_ones_have(context):
    jars = sorted(Path.home().glob(".cache/waltap-peer/**/debezium-connector-common-3.6*.jar"))
    if not jars:
        pytest.skip("no Debezium peer: benchmarks/peer/run-peer --install")
    listing = mbeans()
    with zipfile.ZipFile(jars[-1]) as jar:
        listed = {
            name
            for row in {**listing["Both contexts"], **listing[f"`context={context}`"]}
            for name in row.split(", ")
        }
        assert attributes(jar, OF[context]) == listed
