"""Schemas of Avro events in topics, asked of a real HTTP server."""

import json
import socket
from base64 import b64encode
from collections.abc import Callable

import pytest
from tests.harness.trickling_server import server

from waltap_spark.errors import EventUnreadable, TopicsUnreadable
from waltap_spark.kafka.events import schemas_of


def answering(
    status: str, body: str, seen: list[bytes] | None = None
) -> Callable[[socket.socket], None]:
    def answer(taken: socket.socket) -> None:
        (seen if seen is not None else []).append(taken.recv(1 << 16))
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n"
        taken.sendall(head.encode() + body.encode())

    return answer


def test_a_schema_is_asked_for_once_and_with_the_login_of_the_address():
    seen: list[bytes] = []
    with server(answering("200 OK", '{"schema": "\\"int\\""}', seen)) as url:
        schema_of = schemas_of(url.replace("//", "//me:p%40ss@"))
        assert schema_of("7") == '"int"'
    assert schema_of("7") == '"int"'
    login = b64encode(b"me:p@ss")
    assert len(seen) == 1
    assert seen[0].startswith(b"GET /schemas/ids/7 ")
    assert b"Basic " + login in seen[0]


@pytest.mark.parametrize("code", [40401, 40403])
def test_a_schema_that_is_not_there_concerns_its_event_alone(code):
    missing = answering("404 Not Found", json.dumps({"error_code": code, "message": "not found"}))
    with server(missing) as url, pytest.raises(EventUnreadable):
        schemas_of(url)("7")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("500 No", ""),
        ("401 No", ""),
        ("200 OK", "{}"),
        ("200 OK", "["),
        ("200 OK", "[]"),
        ("404 Not Found", "<html>a proxy</html>"),
        ("404 Not Found", "[]"),
        ("404 Not Found", '{"error_code": 404}'),
    ],  # fmt: skip
)
def test_a_registry_that_gives_none_stops_the_topics_without_its_login(status, body):
    with server(answering(status, body)) as url, pytest.raises(TopicsUnreadable) as caught:
        schemas_of(url.replace("//", "//me:hidden-9@"))("7")
    assert "schema 7 at http://127.0.0.1" in str(caught.value)
    assert "hidden-9" not in str(caught.value)


def test_an_address_that_is_none_of_http_is_refused():
    with pytest.raises(TopicsUnreadable, match="no http address"):
        schemas_of("ftp://h")("7")
