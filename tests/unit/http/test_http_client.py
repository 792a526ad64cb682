"""One deadline over an HTTP exchange, whatever the server sends, and an end of it when the run stops."""

import socket
import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from tests.harness.trickling_server import server, trickle

from waltap.base.network import http as module
from waltap.base.network.http import HttpAnswer, HttpClient

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
