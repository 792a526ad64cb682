"""The sink ``http``: what it makes of records, and requests, tries, refusals, logins with a real HTTP server."""

import base64
import hashlib
import hmac
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from email.utils import formatdate
from typing import Any

import certifi
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.http_receiver import Receiver
from tests.harness.trickling_server import server, trickle

from waltap.base.network import http as module
from waltap.base.network.http import HttpAnswer, HttpClient
from waltap.base.network.retry import retry_after
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.errors import ConfigurationError, RetryVerdict, StopRequested
from waltap.ports.sink.refusal import RecordsRefused, leave_out
from waltap.ports.sink.sink import SinkContext
from waltap_sinks.http.properties import HttpProperties
from waltap_sinks.http.requests import HttpRequest, packer, shards_of
from waltap_sinks.http.sink import ClientCredentials, HttpRefused, HttpSink, HttpUnavailable

RECORDS = [
    Record("s.a", b'{"id":1}', b'{"op":"c"}'),
    Record("s.a", b'{"id":1}', None),
    Record("s.b", None, b'{"op":"r"}', (("h", b'"x"'),)),
]

some_records = st.lists(
    st.builds(
        Record,
        st.sampled_from(["s.a", "s.b"]),
        st.one_of(st.none(), st.sampled_from([b"1", b"2", b"3"])),
        st.one_of(st.none(), st.integers(0, 10**18).map(lambda number: b"%d" % number)),
    )
)


def packed(records: list[Record], **properties: object) -> Iterator[HttpRequest]:
    return packer(HttpProperties.model_validate({"url": "http://receiver", **properties}))(records)


@given(some_records, st.integers(1, 8))
def test_records_of_a_key_stay_in_order(records, count):
    shared = shards_of(records, count)
    assert sorted(map(id, records)) == sorted(id(r) for shard in shared for r in shard)
    for place in {(r.topic, r.key) for r in records}:
        wanted = [r for r in records if (r.topic, r.key) == place]
        holding = [shard for shard in shared if any((r.topic, r.key) == place for r in shard)]
        assert len(holding) == 1
        assert [r for r in holding[0] if (r.topic, r.key) == place] == wanted


@given(some_records, st.integers(1, 5), st.integers(1, 200))
def test_bodies_hold_every_record_once(records, most, size):
    limits = {"batch.size": most, "batch.max.bytes": size, "tombstones": True}
    requests = list(packed(records, body="array", **limits))
    found = [item for request in requests for item in json.loads(request.body)]
    assert [item["topic"] for item in found] == [record.topic for record in records]
    assert sum(len(request.held) for request in requests) == len(records)
    assert all(len(request.held) <= most for request in requests)
    assert all(len(r.held) == 1 or len(r.body) <= size + 2 for r in requests)
    again = [
        json.loads(text)
        for r in packed(records, body="lines", **limits)
        for text in r.body.splitlines()
    ]
    assert again == found


@pytest.mark.parametrize("body", ["record", "array", "lines", "cloudevents"])
def test_tombstones_are_left_out_unless_they_are_wanted(body):
    assert sum(len(request.held) for request in packed(RECORDS, body=body)) == 2


def test_headers_survive_as_base64():
    record = Record("täble", "ü\n".encode(), b"{}")
    (request,) = packed([record], **{"headers.prefix": "X-"})
    assert base64.b64decode(request.headers["X-KEY"]).decode() == "ü\n"
    assert request.headers["X-TOPIC"] == "t%C3%A4ble"


def test_binary_cloud_events_have_the_names_of_http():
    headers = (("ce_id", b'"7"'), ("content-type", b'"application/json"'), ("ce_type", b"x"))
    (request,) = packed([Record("t", None, b"{}", headers)])
    assert request.headers["ce-id"] == "7"
    assert request.headers["ce-type"] == "x"
    assert request.headers["Content-Type"] == "application/json"


Deliver = Callable[..., HttpSink]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def deliver(receiver, tmp_path) -> Iterator[Deliver]:
    """Return what writes records with a sink of these properties, and flushes it."""
    made: list[HttpSink] = []

    def write(records: list[Record], *, tolerant: bool = False, **given: Any) -> HttpSink:
        named = {name.replace("__", "."): value for name, value in given.items()}
        properties = HttpProperties.model_validate(
            {"url": receiver.url, "retry.interval.ms": 10, **named}
        )
        context = SinkContext(pipeline="p", state_dir=tmp_path, tolerant=tolerant)
        sink = HttpSink(properties, context)
        made.append(sink)
        sink.open()
        batch = Batch(parts=[], position=Position(8), events=len(records), records=records)
        try:
            sink.write(batch)
        except RecordsRefused as error:
            sink.refused = error.refused  # type: ignore[attr-defined]
            leave_out(batch, error.refused)
            sink.write(batch)
        assert sink.flush() == Positions({"": Position(8)})
        return sink

    yield write
    for sink in made:
        sink.close()


def change(number: int, value: str = "v") -> Record:
    return Record("p.t", b'{"id":%d}' % number, json.dumps({"id": number, "v": value}).encode())


def items(receiver: Receiver) -> list[dict[str, Any]]:
    """Return the values that were taken, in order."""
    found: list[dict[str, Any]] = []
    for _, sent in receiver.taken:
        here = json.loads(sent) if sent[:1] == b"[" else list(map(json.loads, sent.splitlines()))
        found += [each.get("value", each) for each in here]
    return found


def ids(receiver: Receiver) -> list[int]:
    return [each["id"] for each in items(receiver)]


ROWS = [change(number) for number in range(1, 11)]


@pytest.mark.parametrize("answer", [(429, {"Retry-After": "1"}), (500, {}), None], ids=str)
def test_what_may_pass_is_tried_again(deliver, receiver, answer, caplog):
    receiver.answers.append(answer)
    began = time.monotonic()
    deliver(ROWS)
    assert ids(receiver) == [*range(1, 11)]
    assert len(receiver.refused) == len(caplog.messages) == 1
    if answer and answer[1]:
        assert time.monotonic() - began >= 1, "Retry-After was not waited for"


def test_a_stop_ends_within_its_time_where_the_rest_of_a_batch_takes_longer(receiver, tmp_path):
    left = iter((math.inf, 5.0, 0.5))
    context = SinkContext(pipeline="p", state_dir=tmp_path, time_left=lambda: next(left))
    with closing(HttpSink(HttpProperties.model_validate({"url": receiver.url}), context)) as sink:
        sink.open()
        with pytest.raises(StopRequested):
            sink.write(Batch(parts=[], position=Position(8), events=10, records=ROWS))
        assert (ids(receiver), sink.flush()) == ([1, 2], None)


@pytest.mark.parametrize(("body", "concurrency"), [("record", 4), ("array", 4), ("lines", 1)])
def test_a_record_that_is_called_wrong_is_found_among_those_it_was_sent_with(
    deliver, receiver, body, concurrency
):
    """All others come, each once, in the order of keys."""
    receiver.judge = lambda sent: 422 if b'"bad"' in sent else 200
    bad = {3, 17, 18}
    rows = [change(n, "bad" if n in bad else "ok") for n in range(1, 41)]
    sink = deliver([*rows, change(3, "good")], tolerant=True, body=body, concurrency=concurrency)
    assert [each.index for each in sink.refused] == [2, 16, 17]  # type: ignore[attr-defined]
    assert {type(each.error) for each in sink.refused} == {HttpRefused}  # type: ignore[attr-defined]
    assert sorted(ids(receiver)) == sorted({*range(1, 41)} - {17, 18})
    assert [row["v"] for row in items(receiver) if row["id"] == 3] == ["good"]


def test_a_wrong_address_is_never_tolerated(deliver, receiver):
    receiver.judge = lambda _sent: 404
    with pytest.raises(HttpRefused):
        deliver(ROWS, tolerant=True)


def test_requests_are_signed_and_a_second_try_has_the_same_identifier(deliver, receiver):
    receiver.answers.append((503, {}))
    deliver(ROWS[:1], signature__secret="whsec_" + base64.b64encode(b"key").decode())
    (headers, body), (first, _) = receiver.taken[0], receiver.refused[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(b"key", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    assert headers["webhook-id"] == first["webhook-id"]


@pytest.mark.parametrize(
    ("settings", "authorization"),
    [
        ({"auth__user": "u", "auth__password": "p"}, "Basic dTpw"),
        ({"auth__token": "t-1"}, "Bearer t-1"),
        ({"header__NAME": {"header.Authorization": "Key k"}}, "Key k"),
    ],
)
def test_logins(deliver, receiver, settings, authorization):
    deliver(ROWS[:1], **settings)
    assert receiver.taken[0][0]["authorization"] == authorization


@pytest.mark.parametrize("of", ["ssl__ca", "ssl__certificate", "ssl__key"])
def test_a_file_that_is_no_certificate_is_named_with_its_property(deliver, tmp_path, of):
    (tmp_path / "no.pem").write_text("no certificate")
    more = {"ssl__certificate": certifi.where()} if of == "ssl__key" else {}
    with pytest.raises(ConfigurationError, match=rf"(?s){of.replace('__', '.')}: .*no\.pem cannot"):
        deliver(ROWS, **more, **{of: str(tmp_path / "no.pem")})


def test_two_ways_to_log_in_are_a_mistake(deliver):
    with pytest.raises(ValueError, match="two ways to log in"):
        deliver(ROWS, auth__user="u", auth__token="t")


OAUTH = {"auth__oauth2__client__id": "me", "auth__oauth2__client__secret": "hidden-9"}


def test_client_credentials_are_renewed_when_a_token_is_refused(deliver, receiver):
    with Receiver() as issuer:
        issuer.replies.extend([b'{"access_token": "one"}', b'{"access_token": "two"}'])
        receiver.answers.append((401, {}))
        place = {"auth__oauth2__token__url": issuer.url, "auth__oauth2__scope": "write"}
        deliver(ROWS[:2], **OAUTH, **place)
        used = [headers["authorization"] for headers, _ in receiver.refused + receiver.taken]
        assert used == ["Bearer one", "Bearer two", "Bearer two"]
        assert b"scope=write" in issuer.taken[0][1]


@pytest.mark.parametrize(
    ("expires", "lasts"), [("null", 3570), ("600", 570), ("0", 1), ('"90"', 60)]
)
def test_a_token_is_used_for_as_long_as_its_issuer_says(expires, lasts):
    now = 1000.0
    with Receiver() as issuer, closing(HttpClient(timeout_s=60)) as client:
        named = {name.replace("__", "."): value for name, value in OAUTH.items()}
        given = {"url": "http://h", "auth.oauth2.token.url": issuer.url, **named}
        credentials = ClientCredentials(HttpProperties.model_validate(given), client, lambda: now)
        for name in ("one", "two"):
            reply = f'{{"access_token": "{name}", "expires_in": {expires}}}'
            issuer.replies.append(reply.encode())
        assert credentials.token() == "one"
        now += lasts - 0.5
        assert credentials.token() == "one"
        now += 0.5
        assert credentials.token() == "two"


def test_an_address_where_nobody_listens_is_reported_before_the_start(tmp_path):
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


def test_an_outage_and_a_long_wait_end_with_the_time_for_a_request_and_the_batch_comes_again(
    tmp_path,
):
    with Receiver(started=False) as receiver:
        given = {"url": receiver.url, "retry.interval.ms": 10, "retry.timeout.ms": 50}
        context = SinkContext(pipeline="p", state_dir=tmp_path)
        batch = Batch(parts=[], position=Position(8), events=10, records=ROWS)
        with closing(HttpSink(HttpProperties.model_validate(given), context)) as sink:
            sink.open()
            with pytest.raises(HttpUnavailable) as down:
                sink.write(batch)
            assert down.value.retry is RetryVerdict.SAME_BATCH
            assert "token" not in str(down.value)
            receiver.start()
            receiver.answers.extend([(503, {"Retry-After": "99999999"})] * 2)
            with pytest.raises(HttpUnavailable):
                sink.write(batch)
            sink.write(batch)
            assert sink.flush() == Positions({"": Position(8)})
        assert ids(receiver) == [*range(1, 11)]


def test_retry_after_is_seconds_or_a_time_of_the_servers_clock():
    date, later = (formatdate(moment, usegmt=True) for moment in (940, 1000))
    assert retry_after("7", date) == 7
    assert retry_after(later, date) == 60
    assert retry_after(date, later) == 0
    assert retry_after("soon", date) == retry_after("", date) == retry_after(later, "soon") == 0


# --- one deadline over an exchange, whatever the server sends, and its end when the run stops -----


OK = b"HTTP/1.1 200 OK\r\n"


def sent(url: str, timeout_s: float, body: bytes = b"x", **options: int) -> HttpAnswer:
    with closing(HttpClient(timeout_s=timeout_s)) as client:
        return client.send("POST", url, content=body, **options)


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    def taken(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    return taken


@pytest.mark.parametrize(
    "line",
    [b"", OK + b"Content-Length: 999999\r\n\r\n"],
    ids=["status", "body"],
)
def test_an_answer_that_never_ends_does(line):
    with server(trickle(line)) as url:
        found = sent(url, 0.5)
    assert (found.status, found.again) == (0, True)
    assert "Timeout" in found.problem


def failed(status: int, again: bool) -> tuple[object, ...]:
    head = f"HTTP/1.1 {status} No\r\nRetry-After: 7\r\nContent-Length: 3\r\n\r\nwhy"
    problem = f"it answers {status}"
    found = HttpAnswer(status=status, body=b"why", problem=problem, again=again, wait_s=7.0)
    return answering(head.encode()), 60, {}, found


ANSWERS = {
    "a status counts although its body never ends": (
        trickle(OK + b"Content-Length: 999999\r\n\r\n"), 0.5, {"most_bytes": 1 << 16}, HttpAnswer(status=200),
    ),
    "a body beyond its limit is not read": (
        answering(OK + b"Content-Length: 9\r\n\r\n123"), 60, {"most_bytes": 2}, HttpAnswer(status=200),
    ),
    "a failure says that it may pass": failed(503, True),
    "and when": failed(429, True),
    "or that it may not": failed(404, False),
}  # fmt: skip
"""What the server does, how long is waited, options, and the answer."""


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_as_far_as_it_came(case):
    serve, timeout_s, options, expected = ANSWERS[case]
    with server(serve) as url:
        assert sent(url, timeout_s, **options) == expected


def test_a_stop_ends_an_exchange_after_its_grace(monkeypatch):
    monkeypatch.setattr(module, "MARGIN_S", 0.2)
    with (
        server(trickle(OK + b"X-Slow: ")) as url,
        closing(HttpClient(timeout_s=3600, stopping=lambda: True)) as client,
    ):
        assert "Timeout" in client.send("POST", url, content=b"x").problem


def test_a_server_that_answers_at_once_is_heard_when_the_run_stops():
    answer = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
    with (
        server(answering(answer)) as url,
        closing(HttpClient(timeout_s=60, stopping=lambda: True)) as client,
    ):
        assert client.send("POST", url, content=b"x").status == 204


def test_a_body_that_nobody_takes_is_given_up():
    received = threading.Event()

    def answer(taken: socket.socket) -> None:
        taken.recv(1)
        received.wait(120)

    with server(answer) as url:
        try:
            assert "Timeout" in sent(url, 0.5, bytes(64 << 20)).problem
        finally:
            received.set()
