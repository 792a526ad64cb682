"""Structured logs: one object per line, fields of one vocabulary."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch
from waltap.cli.log_output import FIELDS, as_text, configure
from waltap.errors import ConnectionLost
from waltap.plugins.host import Host
from waltap.services.monitor.status import PartitionStatus, PipelineStatus
from waltap.services.telemetry import lifecycle
from waltap.services.telemetry.lifecycle import LifeCycleLog


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
