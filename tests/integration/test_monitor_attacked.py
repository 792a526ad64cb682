"""The status page under attack: bytes on a socket, as no browser would send them."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator

import pytest
from tests.harness.pipeline import PipelineRig, Run, until

from waltap.services.monitor import server
from waltap.services.monitor.server import MonitorServer

SIGNAL = b'{"type": "log", "data": {"message": "attacked"}}'
TOKEN = "of-the-state-folder"
HERE = b"Host: 127.0.0.1\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
JSON = b"Content-Type: application/json\r\n"
HIDDEN = b"POST /api/signal HTTP/1.1\r\n" + HERE + JSON + b"Content-Length: 48\r\n\r\n" + SIGNAL


NOWHERE = {"database.hostname": "127.0.0.1", "database.dbname": "none", "database.user": "nobody"}


@pytest.fixture(scope="module")
def monitor(tmp_path_factory) -> Iterator[MonitorServer]:
    """The page of a pipeline that was not started: what it takes of signals is in its inbox."""
    folder = tmp_path_factory.mktemp("attacked")
    run = Run(PipelineRig(None, folder, NOWHERE), limits=None, settings={})
    token = folder / "state/p/http-token"
    token.parent.mkdir(parents=True)
    token.write_text(TOKEN)
    with MonitorServer(run.engine, "127.0.0.1:0", None, wait_s=0.05) as made:
        yield made


def sent(monitor: MonitorServer, data: bytes, *, ends: bool = True) -> bytes:
    """Return everything that is answered to ``data`` until the connection is closed by the other side."""
    with socket.create_connection(("127.0.0.1", monitor.port), timeout=120) as link:
        with contextlib.suppress(OSError):  # it may have answered, and closed, before all was sent
            link.sendall(data)
            if ends:
                link.shutdown(socket.SHUT_WR)
        found = b""
        while True:
            try:
                piece = link.recv(65536)
            except ConnectionResetError:
                return found
            if not piece:
                return found
            found += piece


def waiting(monitor: MonitorServer) -> int:
    """Return how many connections take no more of an answer."""
    assert monitor._listener is not None
    links = list(monitor._listener._reading)
    try:
        return len(links) - len(select.select([], links, [], 0)[1])
    except ValueError:  # one was closed since: the next look has the others
        return -1


def taken(monitor: MonitorServer) -> int:
    inbox, found = monitor._engine._run.channels.inbox, 0
    while inbox.take() is not None:
        found += 1
    return found


def post(*headers: bytes, body: bytes = SIGNAL, host: bytes = HERE, kind: bytes = JSON) -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return (
        b"POST /api/signal HTTP/1.1\r\n" + host + kind + length + b"".join(headers) + b"\r\n" + body
    )


def test_the_name_of_its_address_is_not_looked_up(monkeypatch):
    """Where the name server does not answer, the lookup takes longer than a probe waits."""
    monkeypatch.setattr(socket, "getfqdn", lambda _host: pytest.fail("looked up"))
    server.MonitorListener(("127.0.0.1", 0), lambda _request: (200, "", b""), {}).server_close()


def test_the_plain_request_is_taken(monitor):
    """The other tests of this module prove nothing where this one fails."""
    assert b" 202 " in sent(monitor, post())
    assert taken(monitor) == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(host=b"Host: evil.test\r\n"), 421),
        (post(host=b"Host: 127.0.0.1.evil.test:8083\r\n"), 421),
        (post(host=b""), 421),
        (post(host=HERE + HERE), 400),
        (post(b"Origin: http://evil.test\r\n"), 403),
        (post(b"Origin: null\r\n"), 403),
        (post(b"Origin: http://127.0.0.1:1\r\n"), 403),
        (post(b"Sec-Fetch-Site: cross-site\r\n"), 403),
        (post(b"Sec-Fetch-Site: same-site\r\n"), 403),
        (post(kind=b"Content-Type: text/plain\r\n"), 415),
        (post(kind=b"Content-Type: application/x-www-form-urlencoded\r\n"), 415),
        (post(kind=b""), 415),
        (post(body=b"[" * 100_000), 400),
        (post(body=b'{"type": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"), 400),
        (post(body=b"\xff\xfe"), 400),
        (b"POST http://127.0.0.1/api/signal HTTP/1.1\r\n" + post().split(b"\r\n", 1)[1], 400),
        (b"GET http://[ HTTP/1.0\r\nHost: localhost\r\n\r\n", 400),
        (b"POST //evil.test/api/signal HTTP/1.1\r\n" + post().split(b"\r\n", 1)[1], 404),
    ],
)
def test_requests_that_others_make(monitor, request_, status):
    assert sent(monitor, request_).split()[1] == str(status).encode()
    assert taken(monitor) == 0


@pytest.mark.parametrize(
    "headers",
    [
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : chunked\r\nContent-Length: 4\r\n",
        b"Transfer-Encoding: x\r\n chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nContent-Length: 144\r\n",
        b"Content-Length: 4, 4\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 0x4\r\n",
        b"Content-Length: \xb2\r\n",
        b"Content-Length:\r\n",
        b"Content-Length : 4\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"X\0: y\r\nContent-Length: 4\r\n",
        b"no colon\r\nContent-Length: 4\r\n",
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_no_request_hides_in_another(monitor, method, headers):
    """What two readers could cut differently ends the connection: what follows is not looked at."""
    first = method + b" /api/signal HTTP/1.1\r\n" + HERE + JSON + headers + b"\r\n"
    answer = sent(monitor, first + b"0\r\n\r\n" + HIDDEN)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.split()[1] in {b"400", b"411", b"413", b"501"}
    assert taken(monitor) == 0


def test_get_has_no_body(monitor):
    head = b"GET /healthz HTTP/1.1\r\n" + HERE
    answer = sent(monitor, head + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN)
    assert answer.split()[1] == b"400"
    assert taken(monitor) == 0


def test_too_much_is_not_read(monitor):
    long = b"POST /api/signal HTTP/1.1\r\n" + HERE + JSON + b"Content-Length: 1048577\r\n\r\n"
    assert sent(monitor, long, ends=False).split()[1] == b"413"
    assert sent(monitor, b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n").split()[1] == b"414"
    many = b"".join(b"X-%d: y\r\n" % n for n in range(200))
    assert sent(monitor, b"GET / HTTP/1.1\r\n" + HERE + many + b"\r\n").split()[1] == b"431"


def test_who_sends_byte_by_byte_is_cut_off(monitor, monkeypatch):
    """However often something comes: a request as a whole has its time."""
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    with socket.create_connection(("127.0.0.1", monitor.port), timeout=120) as link:
        link.sendall(b"GET / HTTP/1.1\r\n")
        deadline = time.monotonic() + 90
        with pytest.raises(OSError):
            while time.monotonic() < deadline:
                link.sendall(b"X: y\r\n")
                link.settimeout(0.05)
                try:
                    assert link.recv(1) != b"H"
                except TimeoutError:
                    continue
                raise ConnectionResetError
    monkeypatch.undo()
    assert b" 200 " in sent(monitor, b"GET /metrics HTTP/1.1\r\n" + HERE + b"\r\n")


def test_connections_that_wait_give_way_to_others(monitor):
    """Idle ones, and ones that send a request byte by byte: a probe is answered at once all the same."""
    links = []
    try:
        for number in range(server.MOST + 10):
            link = socket.create_connection(("127.0.0.1", monitor.port), timeout=120)
            links.append(link)
            if number % 2:
                link.sendall(b"GET /healthz HT")
        assert sent(monitor, b"GET /healthz HTTP/1.1\r\n" + HERE + b"\r\n").startswith(b"HTTP/1.1 ")
        closed = 0
        for link in links[:10]:  # those that have waited longest
            try:
                closed += link.recv(1) == b""
            except ConnectionResetError:
                closed += 1
        assert closed == 10
    finally:
        for link in links:
            link.close()


def test_connections_that_read_no_answer_give_way_to_others(monitor):
    """Each asks for more than fits between it and the monitor, whose write then waits for it."""
    links = []
    try:
        for _ in range(server.MOST):
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.settimeout(90)
            link.connect(("127.0.0.1", monitor.port))
            links.append(link)
            link.sendall((b"GET / HTTP/1.1\r\n" + HERE + b"\r\n") * 400)
        until(lambda: waiting(monitor) == len(links), "every answer waits")
        assert sent(monitor, b"GET /healthz HTTP/1.1\r\n" + HERE + b"\r\n").startswith(b"HTTP/1.1 ")
    finally:
        for link in links:
            link.close()
