"""The status page in a real browser, while rows arrive."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.pipeline import PipelineRig, Run, until
from tests.harness.servers.browser import browser
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.requirement import missing

from waltap.services.monitor.server import MonitorServer

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
def seen(database, tmp_path) -> Iterator[tuple[Run, MonitorServer]]:
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


def test_it_follows_what_happens_and_shows_names_as_they_are(chromium, seen):
    run, monitor = seen
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


def test_it_is_legible_everywhere_and_the_keyboard_reaches_everything(chromium, seen):
    _, monitor = seen
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
