"""What the page on troubles shows is what its commands print in those troubles: the same lines, with other
numbers. Pages of Spark are tried where Spark is."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.command import waltap
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop

PAGE = (Path(__file__).parents[2] / "docs/howto/troubleshooting.md").read_text()
VARIES = re.compile(
    r"(?P<lsn>\b[0-9A-F]+/[0-9A-F]+\b)|(?P<mark>\b\d{4}-[0-9a-f]{16}-\d{6}\b)"
    r"|(?P<size>\b[\d.,]+ (bytes|[KMG]iB)(?![\w]))|(?P<number>\b\d[\d,.]*)"
)
"""What is another one each time: LSNs, marks of the change log, sizes and numbers."""

TABLES = """
CREATE TABLE orders (id serial PRIMARY KEY, v text);
CREATE TABLE customers (id serial PRIMARY KEY, v text);
INSERT INTO orders (v) SELECT 'x' FROM generate_series(1, 5);
INSERT INTO customers (v) SELECT 'x' FROM generate_series(1, 3);
CREATE PUBLICATION shop FOR TABLE orders, customers;
"""


def shown(heading: str) -> dict[str, str]:
    """Return what the page shows below ``heading``, by command."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = {}
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.setdefault(command.partition(" --last")[0], output)
    return found


def shape(line: str) -> str:
    """Return a line without what varies, nor with how wide its columns and frames are."""
    line = VARIES.sub(lambda match: f"<{match.lastgroup}>", line)
    line = re.sub(r"(<size>|<number>)( s)?\b", "<number>", line)
    return re.sub(r"[━─ ]+", " ", line).strip()


def agrees(said: str, page: str) -> None:
    """Hold what a command said against the page: all of the page's lines, in their order; there may be
    others between."""
    lines = iter([shape(line) for line in said.splitlines()])
    for wanted in filter(None, map(shape, page.splitlines())):
        assert wanted in lines, f"{wanted!r} is not, or not there, in\n{said}"


class Reader(Shop):
    """Somebody who types what the page says, in a folder of their own."""

    def __init__(self, database: Database, folder: Path) -> None:
        database.psql(TABLES)
        more = {
            "slot.name": "shop", "publication.name": "shop", "waltap.state.dir": "state",
            "publication.autocreate.mode": "disabled", "heartbeat.interval.ms": "0",
            "offset.flush.interval.ms": "200",
        }  # fmt: skip
        super().__init__(folder, database, **more)
        self.sink = {"type": "changelog", "path": "lake/changelog"}
        assert self.path.name == "shop.toml"

    def types(self, command: str) -> str:
        done = waltap(*command.split()[1:], cwd=self.folder, NO_COLOR="1")
        return done.stdout + done.stderr

    def asks_until(self, command: str, words: str) -> str:
        until(lambda: words in self.types(command), words)
        return self.types(command)


@pytest.fixture
def shop(database, tmp_path) -> Iterator[Reader]:
    made = Reader(database, tmp_path)
    yield made
    database.execute("DROP PUBLICATION shop")


def test_each_trouble_looks_as_the_page_shows_it(shop):
    slow = shown("It is slow")["waltap status shop.toml"]
    with shop.process("run FILE", ready=True):
        shop.database.execute("INSERT INTO customers (v) VALUES ('y'), ('y')")
        agrees(shop.asks_until("waltap status shop.toml", " 10 events"), slow)

    log = shown("Spark tables lag")["waltap changelog list lake/changelog"]
    agrees(shop.types("waltap changelog list lake/changelog --last 1"), log)

    shop.database.execute("INSERT INTO orders (v) SELECT 'z' FROM generate_series(1, 20000)")
    shop.database.execute("SELECT pg_create_logical_replication_slot('old_test', 'pgoutput')")
    grows = shown("WAL grows")["waltap status shop.toml"]
    agrees(shop.types("waltap status shop.toml"), grows)
    shop.database.execute("SELECT pg_drop_replication_slot('old_test')")

    shop.database.execute("CREATE TABLE notes (v text)")
    missing = shown("Events are missing")["waltap doctor shop.toml"]
    agrees(shop.types("waltap doctor shop.toml"), missing)
    shop.database.execute("DROP TABLE notes")

    shop.database.execute("SELECT pg_drop_replication_slot('shop')")
    gone = shown("The slot is gone")
    agrees(shop.types("waltap run shop.toml"), gone["waltap run shop.toml"])
    agrees(shop.types("waltap repair shop.toml"), gone["waltap repair shop.toml"])
    with shop.process("run FILE", ready=True):
        pass


def test_lines_agree_but_for_what_varies():
    page = "  lag         7.9 MiB\n  slot        shop (pgoutput), no reader\n"
    agrees("x\n  lag  120 bytes\n  y\n  slot  shop (pgoutput), no reader\n", page)
    for other in ("  lag 1 s\n", "  slot shop (pgoutput), no reader\n  lag 1 KiB\n"):
        with pytest.raises(AssertionError):
            agrees(other, page)
