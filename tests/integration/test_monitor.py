"""The status page of a pipeline that runs, as Prometheus, a browser and a probe ask; under attack; and in a real browser."""

import contextlib
import json
import re
import select
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.harness.pipeline import PipelineRig, Run, until
from tests.harness.servers.browser import browser
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.requirement import missing

from waltap.services.monitor import server
from waltap.services.monitor.metrics import METRICS
from waltap.services.monitor.server import MonitorServer

pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1), (2);"
    "CREATE TABLE u (id int PRIMARY KEY)"
)


@pytest.fixture
def seen(pipeline) -> Iterator[tuple[Run, MonitorServer]]:
    with pipeline.monitored() as made:
        yield made


def ask(
    monitor: MonitorServer, path: str, body: object = None, **headers: str
) -> tuple[int, bytes]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    data = None if body is None else text
    if data is not None:
        headers.setdefault("Content-Type", "application/json")
    url = f"http://127.0.0.1:{monitor.port}{path}"
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def samples(monitor: MonitorServer) -> dict[tuple[str, ...], float]:
    status, text = ask(monitor, "/metrics")
    assert status == 200
    return {
        (
            sample.name,
            *(v for k, v in sorted(sample.labels.items()) if k != "pipeline"),
        ): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_prometheus_reads_what_happened(pipeline, seen):
    run, monitor = seen
    pipeline.database.psql(
        "INSERT INTO t VALUES (3, 'x'), (4, 'y'); UPDATE t SET v = 'z' WHERE id = 3;"
        "DELETE FROM t WHERE id = 4; TRUNCATE u; ALTER TABLE t ADD w int; INSERT INTO t VALUES (5)"
    )
    run.until(lambda: pipeline.destination.ids("t", "c")[-1:] == [5], "the last change")
    run.until(lambda: samples(monitor)["waltap_events_total",] == 8, "all events")
    # a batch is counted one number after the other, and flushed when that is done
    run.until(lambda: run.engine.status().unflushed_ms is None, "the flush behind them")
    found = samples(monitor)
    assert found["waltap_snapshot_rows_total",] == 2
    assert found["waltap_table_events_total", "c", "public.t"] == 3
    assert found["waltap_table_events_total", "r", "public.t"] == 2
    assert found["waltap_table_events_total", "u", "public.t"] == 1
    assert found["waltap_table_events_total", "d", "public.t"] == 1
    assert found["waltap_table_events_total", "t", "public.u"] == 1
    assert found["waltap_state", "streaming"] == 1
    assert found["waltap_state", "failed"] == 0
    assert found["waltap_schema_changes_total",] >= 1
    assert found["waltap_batch_seconds_count",] >= 2
    assert found["waltap_flush_seconds_count",] >= 1
    assert found["waltap_event_lag_seconds_count",] >= 1
    assert found["waltap_table_lsn", "public.t"] <= found["waltap_lsn", "", "written"]
    assert found["waltap_snapshot_state", "completed"] == 1
    assert found["waltap_snapshot_tables",] == 2
    assert found["waltap_snapshot_tables_remaining",] <= 1  # an empty one may count as never begun
    assert found["waltap_lsn", "", "written"] >= found["waltap_lsn", "", "durable"] > 0
    assert found["waltap_captured_tables",] == 2
    assert 0 < found["waltap_slot_retained_bytes",] < found["waltap_slot_left_bytes",]
    assert found["waltap_slot_limit_bytes", "disk"] > 0  # the server is on this machine
    assert found["waltap_orphan_slots",] == found["waltap_open_gaps",] == 0
    names = {name for name, *_ in found}
    for metric in METRICS:
        optional = {
            "filtered_events",
            "unflushed_seconds",
            "estimate",
            "_full_seconds",
            "downstream",
        }
        assert metric.shown in names or any(word in metric.name for word in optional)


def test_signals_probes_and_strangers_are_answered(seen, caplog):
    caplog.set_level("INFO")
    run, monitor = seen
    kept = run.pipeline.offset_file.parent / "http-token"
    signal = {"type": "log", "data": {"message": "at {}"}}
    status, body = ask(monitor, "/api/signal", signal)
    assert (status, str(kept) in body.decode()) == (401, True)
    assert ask(monitor, "/api/status")[0] == 200
    assert not run.notices.signals
    by = {"Authorization": f"Bearer {kept.read_text().strip()}"}
    status, body = ask(monitor, "/api/signal", signal, **by)
    assert (status, json.loads(body)["taken"]) == (200, True)
    assert run.notices.signals[0][0] == "log"
    assert json.loads(ask(monitor, "/api/signal", {"type": "log"}, **by)[1])["taken"]
    assert re.findall(r"a log signal without a message, at [0-9A-F]+/[0-9A-F]+", caplog.text)
    status, body = ask(monitor, "/api/signal", {"type": "unheard-of"}, **by)
    assert status == 422
    assert json.loads(body)["reason"]
    assert ask(monitor, "/api/signal", {"kind": "log"}, **by)[0] == 400
    assert ask(monitor, "/api/signal", [1], **by)[0] == 400
    assert ask(monitor, "/api/signal", b'{"type": "\xff"}', **by)[0] == 400
    assert ask(monitor, "/healthz")[0] == ask(monitor, "/readyz")[0] == 200
    assert ask(monitor, "/nothing")[0] == 404
    run.stop()
    assert ask(monitor, "/readyz")[0] == 503


# --- under attack: bytes on a socket, as no browser would send them ------------------------------------


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
    links = list(monitor._listener.reading)
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


def test_head_has_the_headers_of_get(monitor):
    head, end, body = sent(monitor, b"HEAD / HTTP/1.1\r\n" + HERE + b"\r\n").partition(b"\r\n\r\n")
    assert (head.split()[1], end, body) == (b"200", b"\r\n\r\n", b"")


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


# --- in a real browser, while rows arrive --------------------------------------------------------------


EVIL = '<img src=x onerror="document.title=1">'
WAIT_MS = 90_000

VISIBLE = """
() => [...document.querySelectorAll('body *')].filter(e => {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  return own && !e.closest('script, style, svg, .skip') && e.checkVisibility() && e.getClientRects().length;
}).map(e => {
  const solid = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  let under = e, back = [0, 0, 0, 0];
  while (under && back[3] === 0) { back = solid(getComputedStyle(under).backgroundColor); under = under.parentElement; }
  const light = ([r, g, b]) => { const f = c => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
    return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const [a, b] = [light(solid(getComputedStyle(e).color)), light(back)].sort((x, y) => y - x);
  return [e.textContent.trim().slice(0, 40), (a + .05) / (b + .05), back[3]];
})
"""
"""Each text that is seen: its contrast with what is behind it."""

REACHABLE = """
() => [...document.querySelectorAll('a[href], input, [tabindex]')].filter(e => e.checkVisibility()).length
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    try:
        with browser() as made:
            yield made
    except MissingProgram as reason:
        missing(str(reason))


@pytest.fixture
def odd_names(database, tmp_path) -> Iterator[tuple[Run, MonitorServer]]:
    """A pipeline that streams tables with names that mean something in HTML, and its monitor."""
    name = EVIL.replace("'", "''").replace('"', '""')
    database.psql(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1), (2);"
        f'CREATE TABLE "{name}" (id int PRIMARY KEY, "<b>{name[:40]}" int);'
        f'INSERT INTO "{name}" SELECT generate_series(1, 3)'
    )
    with PipelineRig(database, tmp_path).monitored() as made:
        yield made


class Visit:
    """A page that is open; ``said`` is what its console said, ``asked`` where it sent requests."""

    def __init__(self, chromium: Any, monitor: MonitorServer, **view: Any) -> None:
        self.context = chromium.new_context(**view)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda line: self.said.append(line.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        here = f"http://127.0.0.1:{monitor.port}/"
        self.context.route(
            lambda url: not url.startswith((here, "data:")), lambda route: route.abort()
        )
        self.page.goto(here)
        self.until("document.querySelectorAll('#tables tr').length > 1")
        self.here = here

    def until(self, condition: str) -> None:
        # the page's policy allows no eval, which waiting inside of it would take
        until(lambda: self.page.evaluate(f"() => !!({condition})"), condition)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def close(self) -> None:
        elsewhere = [url for url in self.asked if not url.startswith((self.here, "data:"))]
        assert (self.said, elsewhere) == ([], [])
        self.context.close()


def test_it_follows_what_happens_and_shows_names_as_they_are(chromium, odd_names):
    run, monitor = odd_names
    database = run.pipeline.database
    visit = Visit(chromium, monitor)
    assert visit.text("#state") == "streaming"
    assert EVIL in visit.text("#tables")
    assert visit.page.query_selector("main img") is None
    assert EVIL in visit.text("#snap")
    visit.page.fill("#filter", "img")
    visit.until("document.querySelectorAll('#tables tr').length === 1")
    visit.page.fill("#filter", "")
    database.execute("INSERT INTO t SELECT generate_series(10, 109)")
    visit.until("[...document.querySelectorAll('#tables td')].some(c => c.textContent === '100')")
    name = EVIL.replace('"', '""')
    database.execute(f'INSERT INTO "{name}" (id) VALUES (8)')
    visit.until("document.getElementById('tables').rows[0].textContent.includes('onerror')")
    database.execute(f'ALTER TABLE "{name}" ADD COLUMN "<i>new</i>" int')
    database.execute(f'INSERT INTO "{name}" (id) VALUES (9)')
    visit.until("document.getElementById('ddl').textContent.includes('<i>new</i>: added')")
    database.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                     " WHERE slot_name = %s", run.pipeline.slot)  # fmt: skip
    visit.until("!document.getElementById('failing').hidden")
    assert "WT-2" in visit.text("#fails")
    assert ", retried" in visit.text("#fails")
    assert visit.page.query_selector("#fails .remedy") is not None
    visit.until("document.title === 'p: streaming'")
    assert visit.page.query_selector("main img, main i:not(.bar i), main b b") is None
    visit.close()


def test_it_is_legible_everywhere_and_the_keyboard_reaches_everything(chromium, odd_names):
    _, monitor = odd_names
    for width, scheme in ((375, "light"), (1280, "dark")):
        view = {"viewport": {"width": width, "height": 740}, "color_scheme": scheme}
        visit = Visit(chromium, monitor, **view)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        texts = visit.page.evaluate(VISIBLE)
        assert len(texts) > 40
        assert [each for each in texts if each[1] < 4.5 or each[2] != 1] == [], (width, scheme)
        back = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, back[4:-1].split(","))) < 128 * 3) == (scheme == "dark")
        visit.close()
    visit = Visit(chromium, monitor)
    reached, count = set(), visit.page.evaluate(REACHABLE)
    for _ in range(count):
        visit.page.keyboard.press("Tab")
        reached.add(visit.page.evaluate(
            "(e => e.id || e.className || e.textContent)(document.activeElement)"
        ))  # fmt: skip
        outline = visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    assert {"skip", "rates", "lags", "filter", "to-metrics", "to-status"} <= reached
    assert "BODY" not in reached
    visit.page.focus("#rates")
    now = visit.text("#rate")
    visit.page.keyboard.press("Home")
    visit.until(f"document.getElementById('rate').textContent !== {json.dumps(now)}")
    assert visit.text("#rate")[2] == ":"
    visit.close()
