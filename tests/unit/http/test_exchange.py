"""One deadline over an HTTP exchange, whatever the server sends, and an end of it when the run stops."""

import socket
import threading

import httpx
import pytest
from tests.harness.trickling_server import server, trickle

from waltap.base.http import exchange as module
from waltap.base.http.exchange import bounded, exchange


@pytest.mark.parametrize(
    "line",
    [b"", b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n"],
    ids=["status", "headers", "body"],
)
def test_an_answer_that_never_ends_does(line: bytes) -> None:
    with (
        server(trickle(line)) as url,
        bounded(httpx.Client(timeout=60)) as client,
        pytest.raises(httpx.HTTPError),
        exchange(0.5),
    ):
        client.post(url, content=b"x")


def test_a_stop_ends_an_exchange_after_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.2)
    with (
        server(trickle(b"HTTP/1.1 200 OK\r\nX-Slow: ")) as url,
        bounded(httpx.Client(timeout=60)) as client,
        pytest.raises(httpx.TimeoutException),
        exchange(3600, lambda: True),
    ):
        client.post(url, content=b"x")


def test_a_server_that_answers_at_once_is_heard_when_the_run_stops() -> None:
    def answer(taken: socket.socket) -> None:
        taken.recv(1 << 16)
        taken.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    with server(answer) as url, bounded(httpx.Client()) as client, exchange(60, lambda: True):
        assert client.post(url, content=b"x").status_code == 204


def test_a_body_that_nobody_takes_is_given_up() -> None:
    received = threading.Event()

    def answer(taken: socket.socket) -> None:
        taken.recv(1)
        received.wait(30)

    with (
        server(answer) as url,
        bounded(httpx.Client(timeout=60)) as client,
        pytest.raises(httpx.TimeoutException),
        exchange(0.5),
    ):
        try:
            client.post(url, content=bytes(64 << 20))
        finally:
            received.set()


def test_the_next_exchange_has_its_own_deadline() -> None:
    with bounded(httpx.Client(timeout=60)) as client:
        with server(trickle(b"")) as url, pytest.raises(httpx.HTTPError), exchange(0.3):
            client.get(url)

        def answer(taken: socket.socket) -> None:
            taken.recv(1 << 16)
            taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        with server(answer) as url, exchange(60):
            assert client.get(url).status_code == 200
