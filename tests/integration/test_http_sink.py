"""The sink ``http`` and a real HTTP server: order, retries, refusals, logins, signatures."""

import base64
import contextlib
import hashlib
import hmac
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from waltap.dead_letters.letter import Letter
from waltap.dead_letters.store import LetterStore
from waltap.errors import ConfigurationError, SinkError
from waltap.http import retry_after
from waltap.sink.sink import SinkContext
from waltap_sinks.http.errors import HttpLoginRefused, HttpRefused, HttpUnavailable
from waltap_sinks.http.login import ClientCredentials
from waltap_sinks.http.properties import HttpProperties
from waltap_sinks.http.sink import HttpSink

from tests.harness.http_receiver import Receiver
from tests.harness.pipeline import PipelineRig
from tests.harness.trickling_server import server, trickle
from tests.harness.servers.postgres import Database


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


def test_each_record_is_a_request(pipeline: PipelineRig, receiver: Receiver) -> None:
    pipeline.catch_up()
    insert(pipeline, 1, 5)
    pipeline.catch_up()
    assert ids(receiver) == [1, 2, 3, 4, 5]
    headers, _ = receiver.taken[0]
    assert headers["x-debezium-topic"] == "p.public.t"
    assert json.loads(base64.b64decode(headers["x-debezium-key"])) == {"id": 1}
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("body", ["array", "lines"])
def test_many_records_are_a_request(pipeline: PipelineRig, receiver: Receiver, body: str) -> None:
    pipeline.settings |= {"sink.body": body, "sink.batch.size": 4, **ONE_BATCH}
    pipeline.catch_up()
    insert(pipeline, 1, 10)
    pipeline.catch_up()
    bodies = [body for _, body in receiver.taken]
    split = json.loads if body == "array" else lambda text: map(json.loads, text.splitlines())
    found = [item for each in bodies for item in split(each)]
    assert [item["value"]["after"]["id"] for item in found] == [*range(1, 11)]
    assert max(len(list(split(each))) for each in bodies) <= 4
    assert len(bodies) < 10


@pytest.mark.parametrize(
    "answer", [(503, {}), (429, {"Retry-After": "1"}), (500, {}), None], ids=str
)
def test_what_may_pass_is_tried_again(
    pipeline: PipelineRig, receiver: Receiver, answer: tuple[int, dict[str, str]] | None
) -> None:
    pipeline.catch_up()
    insert(pipeline, 1, 3)
    receiver.answers.extend([answer, answer])
    began = time.monotonic()
    pipeline.catch_up()
    assert ids(receiver) == [1, 2, 3]
    assert len(receiver.refused) == 2
    if answer and answer[1]:
        assert time.monotonic() - began >= 2, "Retry-After was not waited for"


def test_a_receiver_that_is_down_loses_nothing(database: Database, tmp_path: Path) -> None:
    """Nothing is confirmed meanwhile; the engine goes on with the same batch."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with Receiver(started=False) as receiver:
        sink = {
            "sink.type": "http",
            "sink.url": receiver.url,
            "sink.retry.interval.ms": 10,
            "sink.retry.timeout.ms": 50,
            "snapshot.mode": "no_data",
        }
        pipeline = PipelineRig(database, tmp_path, sink)
        with pipeline.running() as run:
            insert(pipeline, 1, 3)
            run.until(lambda: run.notices.failures, "a failure that is told")
            error, retried = run.notices.failures[0]
            assert isinstance(error, HttpUnavailable)
            assert retried
            assert "token" not in str(error)
            receiver.start()
            run.until(lambda: len(receiver.taken) == 3, "the records")
        assert ids(receiver) == [1, 2, 3]


def test_an_address_where_nobody_listens_is_told_before_the_start(tmp_path: Path) -> None:
    with Receiver(started=False) as receiver:
        properties = HttpProperties.model_validate({"url": receiver.url})
        sink = HttpSink(properties, SinkContext(pipeline="p", state_dir=tmp_path))
        (quiet,) = sink.check()
        receiver.start()
        (there,) = sink.check()
    assert (quiet.verdict, there.verdict) == ("warning", "ok")
    assert "refused" in quiet.found
    assert "token" not in quiet.found
    assert not receiver.taken


def test_what_a_service_asks_to_wait_ends_with_the_time_for_a_request(
    database: Database, tmp_path: Path, receiver: Receiver
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    sink = {"sink.type": "http", "sink.url": receiver.url, "sink.retry.timeout.ms": 50}
    pipeline = PipelineRig(database, tmp_path, sink | {"snapshot.mode": "no_data"})
    with pipeline.running() as run:
        receiver.answers.extend([(503, {"Retry-After": "99999999"})] * 2)
        insert(pipeline, 1, 3)
        run.until(lambda: run.notices.failures, "a failure that is told")
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


def test_an_answer_without_end_is_not_read_to_its_end(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with _EndlessServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            sink = {"sink.type": "http", "sink.url": url, "snapshot.mode": "no_data"}
            pipeline = PipelineRig(database, tmp_path, sink)
            pipeline.catch_up()
            insert(pipeline, 1, 3)
            pipeline.catch_up()
            assert [json.loads(body)["after"]["id"] for body in server.bodies] == [1, 2, 3]
        finally:
            server.shutdown()
            thread.join()


def test_headers_without_end_do_not_hold_a_stop(database: Database, tmp_path: Path) -> None:
    """The receiver sends a byte of its headers every 20 ms for as long as anybody listens."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    asked = threading.Event()
    with server(trickle(b"HTTP/1.1 200 OK\r\nX-Slow: "), asked) as url:
        sink = {"sink.type": "http", "sink.url": url, "sink.timeout.ms": 3_600_000}
        pipeline = PipelineRig(database, tmp_path, sink | {"snapshot.mode": "no_data"})
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


@pytest.mark.parametrize("body", ["record", "array", "lines"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_record_that_is_called_wrong_becomes_a_dead_letter(
    pipeline: PipelineRig, receiver: Receiver, body: str, concurrency: int
) -> None:
    """It is found among those that it was sent with; all others come, each once, in the order of keys."""
    pipeline.settings |= {"sink.body": body, "sink.concurrency": concurrency}
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
        (each["value"] if "topic" in each else each)["after"]
        for _, sent in receiver.taken
        for each in _documents(sent)
    ]
    assert sorted(row["id"] for row in rows) == sorted({*range(1, 41)} - {17, 18})
    assert [row["v"] for row in rows if row["id"] == 3] == ["good"]
    letters = letters_of(pipeline)
    assert [each.record and "bad" in (each.record.value or "") for each in letters] == [True] * 3
    assert {(each.code, each.table, each.op) for each in letters} == {("WT-5602", "public.t", "c")}
    assert [each.place.index for each in letters] == [2, 16, 17]
    assert run.engine.status().dead_letters == 3


def test_what_is_refused_by_default_is_told_with_its_event(
    pipeline: PipelineRig, receiver: Receiver
) -> None:
    pipeline.catch_up()
    insert(pipeline, 1, 3)
    receiver.judge = lambda sent: 400 if b'"v2"' in sent else 200
    with pytest.raises(HttpRefused, match=r"c of public\.t, [0-9A-F]+/[0-9A-F]+, change 1"):
        pipeline.catch_up()
    assert ids(receiver) == [1]


def test_a_request_that_is_too_large_is_sent_in_pieces(
    pipeline: PipelineRig, receiver: Receiver
) -> None:
    pipeline.settings |= {"sink.body": "array"}
    pipeline.catch_up()
    insert(pipeline, 1, 20)
    receiver.judge = lambda sent: 413 if len(json.loads(sent)) > 3 else 200
    pipeline.catch_up()
    found = [item["value"]["after"]["id"] for each in receiver.documents() for item in each]
    assert found == [*range(1, 21)]


def test_a_wrong_address_is_never_tolerated(pipeline: PipelineRig, receiver: Receiver) -> None:
    pipeline.settings |= {"errors.tolerance": "dead_letter"}
    pipeline.catch_up()
    insert(pipeline, 1, 3)
    receiver.judge = lambda _sent: 404
    with pytest.raises(HttpRefused):
        pipeline.catch_up()
    assert letters_of(pipeline) == []


def letters_of(pipeline: PipelineRig) -> list[Letter]:
    return LetterStore(pipeline.offset_file.parent / "dead-letters").letters()


def _documents(sent: bytes) -> list[dict[str, Any]]:
    found = json.loads(sent) if sent[:1] == b"[" else list(map(json.loads, sent.splitlines()))
    return found if isinstance(found, list) else [found]


def test_keys_keep_their_order_beside_each_other(pipeline: PipelineRig, receiver: Receiver) -> None:
    pipeline.settings["sink.concurrency"] = 8
    pipeline.catch_up()
    insert(pipeline, 1, 20)
    for _ in range(5):
        pipeline.database.execute("UPDATE t SET v = v || '.'")
    receiver.answers.extend([(503, {})] * 10)
    pipeline.catch_up()
    for number in range(1, 21):
        of_key = [d["after"]["v"] for d in receiver.documents() if d["after"]["id"] == number]
        assert of_key == [f"v{number}" + "." * times for times in range(6)]


def test_requests_are_signed_and_a_second_try_has_the_same_identifier(
    pipeline: PipelineRig, receiver: Receiver
) -> None:
    pipeline.settings["sink.signature.secret"] = "whsec_" + base64.b64encode(b"key").decode()
    pipeline.catch_up()
    insert(pipeline, 1, 1)
    receiver.answers.append((503, {}))
    pipeline.catch_up()
    (headers, body), (first, _) = receiver.taken[0], receiver.refused[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(b"key", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    assert headers["webhook-id"] == first["webhook-id"]


@pytest.mark.parametrize(
    ("settings", "authorization"),
    [
        ({"auth.user": "u", "auth.password": "p"}, "Basic dTpw"),
        ({"auth.token": "t-1"}, "Bearer t-1"),
        ({"header.Authorization": "Key k"}, "Key k"),
    ],
)
def test_logins(
    pipeline: PipelineRig, receiver: Receiver, settings: dict[str, Any], authorization: str
) -> None:
    pipeline.settings |= {f"sink.{name}": value for name, value in settings.items()}
    pipeline.catch_up()
    insert(pipeline, 1, 1)
    pipeline.catch_up()
    assert receiver.taken[0][0]["authorization"] == authorization


def test_client_credentials_are_renewed_when_a_token_is_refused(
    pipeline: PipelineRig, receiver: Receiver
) -> None:
    with Receiver() as issuer:
        issuer.replies.extend([b'{"access_token": "one"}', b'{"access_token": "two"}'])
        pipeline.settings |= {
            "sink.auth.oauth2.token.url": issuer.url,
            "sink.auth.oauth2.client.id": "me",
            "sink.auth.oauth2.client.secret": "hidden-9",
            "sink.auth.oauth2.scope": "write",
        }
        pipeline.catch_up()
        insert(pipeline, 1, 2)
        receiver.answers.append((401, {}))
        pipeline.catch_up()
        used = [headers["authorization"] for headers, _ in receiver.refused + receiver.taken]
        assert used == ["Bearer one", "Bearer two", "Bearer two"]
        assert b"scope=write" in issuer.taken[0][1]


@pytest.mark.parametrize(
    ("expires", "lasts"), [("null", 3570), ("600", 570), ("0", 1), ('"90"', 60)]
)
def test_a_token_is_used_for_as_long_as_its_issuer_says(
    monkeypatch: pytest.MonkeyPatch, expires: str, lasts: float
) -> None:
    now = 1000.0
    monkeypatch.setattr("waltap_sinks.http.login.time", SimpleNamespace(monotonic=lambda: now))
    with Receiver() as issuer, httpx.Client() as client:
        given = {
            "url": "http://h",
            "auth.oauth2.token.url": issuer.url,
            "auth.oauth2.client.id": "me",
            "auth.oauth2.client.secret": "hidden-9",
        }
        credentials = ClientCredentials(HttpProperties.model_validate(given), client)
        for name in ("one", "two"):
            reply = f'{{"access_token": "{name}", "expires_in": {expires}}}'
            issuer.replies.append(reply.encode())
        assert credentials.token() == "one"
        now += lasts - 0.5
        assert credentials.token() == "one"
        now += 0.5
        assert credentials.token() == "two"


def test_two_ways_to_log_in_are_a_mistake(pipeline: PipelineRig) -> None:
    pipeline.settings |= {"sink.auth.user": "u", "sink.auth.token": "t"}
    host, _ = pipeline.host()
    with pytest.raises(ConfigurationError, match="two ways to log in"):
        pipeline.profile(host)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after("7", 0) == 7
    assert retry_after(formatdate(1000, usegmt=True), 940) == 60
    assert retry_after("soon", 0) == retry_after("", 0) == 0
