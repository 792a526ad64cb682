"""The sink ``http`` in pipelines, with a real HTTP server: outages, refusals, dead letters, stops."""

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.dead_letters import dead_letters_of
from tests.harness.http_receiver import Receiver
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.trickling_server import server, trickle

from waltap.errors import SinkError
from waltap_sinks.http.errors import HttpLoginRefused, HttpRefused, HttpUnavailable


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def pipeline(database: Database, tmp_path: Path, receiver: Receiver) -> PipelineRig:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    sink = {"sink.type": "http", "sink.url": receiver.url, "sink.retry.interval.ms": 10}
    return PipelineRig(database, tmp_path, sink | {"snapshot.mode": "no_data"})


ONE_BATCH = {"waltap.linger.ms": 3_600_000}
"""What is committed already is one batch, however the server sends it; the end of a run waits for nothing."""


def ids(receiver: Receiver) -> list[int]:
    return [(each["after"] or each["before"])["id"] for each in receiver.documents()]


def insert(pipeline: PipelineRig, first: int, last: int) -> None:
    pipeline.database.execute(
        "INSERT INTO t SELECT i, 'v' || i FROM generate_series(%s::int, %s::int) i", first, last
    )


def test_a_receiver_that_is_down_loses_nothing(pipeline: PipelineRig) -> None:
    """Nothing is confirmed meanwhile; the engine goes on with the same batch."""
    with Receiver(started=False) as receiver:
        pipeline.settings |= {"sink.url": receiver.url, "sink.retry.timeout.ms": 50}
        with pipeline.running() as run:
            insert(pipeline, 1, 3)
            run.until(lambda: run.notices.failures, "a failure that is reported")
            error, retried = run.notices.failures[0]
            assert isinstance(error, HttpUnavailable)
            assert retried
            assert "token" not in str(error)
            receiver.start()
            run.until(lambda: len(receiver.taken) == 3, "the records")
        assert ids(receiver) == [1, 2, 3]


def test_what_a_service_asks_to_wait_ends_with_the_time_for_a_request(
    pipeline: PipelineRig, receiver: Receiver
) -> None:
    pipeline.settings["sink.retry.timeout.ms"] = 50
    with pipeline.running() as run:
        receiver.answers.extend([(503, {"Retry-After": "99999999"})] * 2)
        insert(pipeline, 1, 3)
        run.until(lambda: run.notices.failures, "a failure that is reported")
        run.until(lambda: len(receiver.taken) == 3, "the records")
    assert ids(receiver) == [1, 2, 3]


class _EndlessAnswers(socketserver.StreamRequestHandler):
    """Takes each request, and answers with a body that never ends."""

    def handle(self) -> None:
        if not self.rfile.readline():
            return  # somebody who only looked whether we listen
        length = 0
        while line := self.rfile.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert isinstance(self.server, _EndlessServer)
        self.server.bodies.append(self.rfile.read(length))
        with contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                self.wfile.write(bytes(1 << 16))


class _EndlessServer(socketserver.ThreadingTCPServer):
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _EndlessAnswers)


def test_an_answer_without_end_is_not_read_to_its_end(pipeline: PipelineRig) -> None:
    with _EndlessServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            pipeline.settings["sink.url"] = f"http://127.0.0.1:{server.server_address[1]}"
            pipeline.catch_up()
            insert(pipeline, 1, 3)
            pipeline.catch_up()
            assert [json.loads(body)["after"]["id"] for body in server.bodies] == [1, 2, 3]
        finally:
            server.shutdown()
            thread.join()


def test_headers_without_end_do_not_hold_a_stop(pipeline: PipelineRig) -> None:
    """The receiver sends a byte of its headers every 20 ms for as long as anybody listens."""
    asked = threading.Event()
    with server(trickle(b"HTTP/1.1 200 OK\r\nX-Slow: "), asked) as url:
        pipeline.settings |= {"sink.url": url, "sink.timeout.ms": 3_600_000}
        with pipeline.running() as run:
            insert(pipeline, 1, 1)
            run.until(asked.is_set, "the sink sends the row")
            run.stop()


@pytest.mark.parametrize(("status", "error"), [(400, HttpRefused), (403, HttpLoginRefused)])
def test_what_is_refused_stops_and_comes_again(
    pipeline: PipelineRig, receiver: Receiver, status: int, error: type[SinkError]
) -> None:
    pipeline.settings |= ONE_BATCH
    pipeline.catch_up()
    insert(pipeline, 1, 3)
    receiver.answers.extend([(204, {}), (status, {})])
    with pytest.raises(error, match=str(status)):
        pipeline.catch_up()
    assert ids(receiver) == [1]
    pipeline.catch_up()
    assert ids(receiver) == [1, 1, 2, 3], "at least once: none is missing"


def test_a_record_that_is_called_wrong_becomes_a_dead_letter(
    pipeline: PipelineRig, receiver: Receiver
) -> None:
    """It is found among those that it was sent with; all others come, each once, in the order of keys."""
    pipeline.settings |= {"sink.body": "lines", "sink.concurrency": 4}
    pipeline.settings |= {"errors.tolerance": "dead_letter"}
    pipeline.catch_up()
    receiver.judge = lambda sent: 422 if b'"bad"' in sent else 200
    pipeline.database.execute(
        "INSERT INTO t SELECT i, CASE WHEN i IN (3, 17, 18) THEN 'bad' ELSE 'ok' END "
        "FROM generate_series(1, 40) i"
    )
    pipeline.database.execute("UPDATE t SET v = 'good' WHERE id = 3")
    run = pipeline.catch_up()
    rows = [
        json.loads(line)["value"]["after"]
        for _, sent in receiver.taken
        for line in sent.splitlines()
    ]
    assert sorted(row["id"] for row in rows) == sorted({*range(1, 41)} - {17, 18})
    assert [row["v"] for row in rows if row["id"] == 3] == ["good"]
    dead_letters = dead_letters_of(pipeline)
    assert [each.record and "bad" in (each.record.value or "") for each in dead_letters] == [
        True
    ] * 3
    assert {(each.code, each.table, each.op) for each in dead_letters} == {
        ("WT-5602", "public.t", "c")
    }
    assert [each.place.index for each in dead_letters] == [2, 16, 17]
    assert run.engine.status().dead_letters == 3


def test_what_is_refused_by_default_is_reported_with_its_event(
    pipeline: PipelineRig, receiver: Receiver
) -> None:
    pipeline.catch_up()
    insert(pipeline, 1, 3)
    receiver.judge = lambda sent: 400 if b'"v2"' in sent else 200
    with pytest.raises(HttpRefused, match=r"c of public\.t, [0-9A-F]+/[0-9A-F]+, change 1"):
        pipeline.catch_up()
    assert ids(receiver) == [1]
