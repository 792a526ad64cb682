"""What goes wrong while an incremental snapshot reads: told, and the stream goes on."""

import socket
from pathlib import Path
from typing import Any

import pytest
from waltap.control.client import ask
from waltap.control.errors import PipelineNotRunning
from waltap.control.protocol import SignalRequest
from waltap.offsets.state_folder import CONTROL

from tests.harness.chunks import around_chunk
from tests.harness.pipeline import PipelineRig, Run
from tests.harness.servers.postgres import Database

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT g, g FROM generate_series(1, 25) g;"
    "CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u SELECT generate_series(1, 15)"
)


pytestmark = pytest.mark.pipeline(
    sql=TABLES, settings={"snapshot.mode": "no_data", "incremental.snapshot.chunk.size": 10}
)


def asked(run: Run, *tables: str, **data: Any) -> None:
    given = {"data-collections": list(tables), **data}
    assert run.engine.signal("execute-snapshot", given).result(90).taken


def test_a_locked_table_is_waited_for_while_the_stream_goes_on(
    pipeline: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    database, destination = pipeline.database, pipeline.destination
    with pipeline.running() as run, database.connect(autocommit=False) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        asked(run, "public.t", "public.u")
        run.until(lambda: "is locked by somebody" in caplog.text, "the lock to be told of")
        database.execute("INSERT INTO u VALUES (100)")
        run.until(lambda: destination.ids("u", "c") == [100], "the stream")
        assert destination.ids("t") == []
        other.rollback()
        run.until(lambda: len(destination.ids("t", "r")) == 25, "the table")
        run.until(lambda: len(destination.ids("u", "r")) == 16, "the other table")
    assert caplog.text.count("is locked by somebody") == 1


def test_a_table_that_is_dropped_between_two_chunks_ends_and_the_next_is_read(
    pipeline: PipelineRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database, destination = pipeline.database, pipeline.destination
    told: list[dict[str, object]] = []
    around_chunk(monkeypatch, lambda: database.execute("DROP TABLE t"))
    with pipeline.running() as run:
        run.engine.on_notification(lambda notification: told.append(notification.document()))
        asked(run, "public.t", "public.u")
        run.until(lambda: len(destination.ids("u", "r")) == 15, "the other table")
        database.execute("INSERT INTO u VALUES (100)")
        run.until(lambda: destination.ids("u", "c") == [100], "the stream")
    assert "table public.t is not read" in caplog.text
    ends = [d["additional_data"] for d in told if d["type"] == "TABLE_SCAN_COMPLETED"]
    assert [end["status"] for end in ends] == ["UNKNOWN_SCHEMA", "SUCCEEDED"]  # type: ignore[index]


def test_a_chunk_that_the_server_refuses_ends_its_table_and_the_next_is_read(
    pipeline: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    database, destination = pipeline.database, pipeline.destination
    with pipeline.running() as run:
        conditions = [{"data-collection": "public.t", "filter": "10 / (id - 15) > 0"}]
        asked(run, "public.t", "public.u", **{"additional-conditions": conditions})
        run.until(lambda: len(destination.ids("u", "r")) == 15, "the other table")
    assert "division by zero" in caplog.text
    assert destination.ids("t") == []


def test_a_table_without_a_key_is_told_of_and_the_next_is_read(
    pipeline: PipelineRig, caplog: pytest.LogCaptureFixture
) -> None:
    database, destination = pipeline.database, pipeline.destination
    database.execute("CREATE TABLE keyless (v int); INSERT INTO keyless VALUES (1)")
    with pipeline.running(**{"publication.keyless.tables": "inserts"}) as run:
        asked(run, "public.keyless", "public.u")
        run.until(lambda: len(destination.ids("u", "r")) == 15, "the other table")
    assert "surrogate-key" in caplog.text


def test_the_control_socket_of_a_dead_process_is_told_as_that(
    pipeline: PipelineRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pipeline.offset_file.parent
    with pipeline.running():
        pass
    with socket.socket(socket.AF_UNIX) as left, monkeypatch.context() as here:
        here.chdir(folder)  # paths of sockets are short
        Path(CONTROL).unlink(missing_ok=True)
        left.bind(CONTROL)  # what a killed process leaves behind
    with pytest.raises(PipelineNotRunning, match="a dead process's"):
        ask(folder, SignalRequest(kind="log"))
    with pipeline.running():  # the next start makes it anew
        request = SignalRequest(kind="log", data={"message": "here"}, wait_ms=60_000)
        assert ask(folder, request).taken
