"""The tutorial does what it says, and troubles look as the page on them shows it: each command is run, and prints what
stands below it. Pages of Spark are tried where Spark is."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.harness.command import waltap
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database, program
from tests.harness.shop import Shop

TROUBLES = (Path(__file__).parents[2] / "docs/howto/troubleshooting.md").read_text()
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
    text = TROUBLES.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
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


@pytest.fixture
def shop(database, tmp_path) -> Iterator[Reader]:
    made = Reader(database, tmp_path)
    yield made
    database.execute("DROP PUBLICATION shop")


def test_each_trouble_looks_as_the_page_shows_it(shop):
    slow = shown("It is slow")["waltap status shop.toml"]
    with shop.process("run FILE", ready=True):
        shop.database.execute("INSERT INTO customers (v) VALUES ('y'), ('y')")
        until(lambda: " 10 events" in shop.types("waltap status shop.toml"), "10 events")
        agrees(shop.types("waltap status shop.toml"), slow)

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


# --- the tutorial --------------------------------------------------------------------------------------


PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?:<!-- ([^\n]*?) -->\n)?```(console|sql)\n(.*?)```\n", re.DOTALL)
PATIENCE_S = 400.0
"""How long to wait for Spark: a loaded machine starts it slowly, and nothing here is about speed."""


@dataclass(frozen=True)
class Step:
    """A command, what it prints, and what the page's comment says of the block."""

    note: str
    command: str
    expected: str


def steps(text: str) -> Iterator[Step]:
    for note, language, body in BLOCK.findall(text):
        if language == "sql":
            yield Step(note, "", body)
            continue
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            yield Step(note, command, expected)


def variables(text: str) -> list[tuple[str, re.Pattern[str]]]:
    (declared,) = re.findall(r"<!-- varies\n(.*?)-->", text, re.DOTALL)
    pairs = (line.split(maxsplit=1) for line in declared.splitlines())
    return [(name, re.compile(pattern)) for name, pattern in pairs]


@dataclass
class Visitor:
    """Somebody who does what the page says, in a folder of their own."""

    folder: Path
    address: str
    environment: dict[str, str]
    varies: list[tuple[str, re.Pattern[str]]]
    exports: list[str] = field(default_factory=list)
    other: subprocess.Popen[bytes] | None = None
    seen: bytearray = field(default_factory=bytearray)

    def does(self, step: Step) -> None:
        if step.note.startswith("file: "):
            (self.folder / step.note.removeprefix("file: ")).write_text(step.expected)
        elif step.note == "in another terminal":
            self.opens_a_terminal(step)
        else:
            if step.note.startswith("after Ctrl-C"):
                self.stops()
            self.compares(step, until=step.note.startswith("until"))

    def compares(self, step: Step, *, until: bool) -> None:
        wanted, deadline = self.pattern(step.expected), time.monotonic() + PATIENCE_S
        while True:
            printed = self.runs(step.command)
            if re.fullmatch(wanted, self.plain(printed)):
                return
            if not until or time.monotonic() > deadline:
                assert self.plain(printed) == self.plain(step.expected), step.command
                pytest.fail(f"{step.command} printed\n{printed}")
            time.sleep(0.5)

    def runs(self, command: str) -> str:
        command = command.replace("localhost:5432", self.address)
        command = command.replace(
            "waltap snapshot ", "waltap snapshot --wait 120 "
        )  # a busy machine
        if command.startswith("export "):
            self.exports.append(command)
            return ""
        done = subprocess.run(
            ["bash", "-c", "\n".join([*self.exports, command])],
            cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return done.stdout

    def opens_a_terminal(self, step: Step) -> None:
        ours, theirs = pty.openpty()
        self.other = subprocess.Popen(
            ["bash", "-c", "\n".join([*self.exports, f"exec {step.command}"])],
            cwd=self.folder, env=self.environment, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)

        def read() -> None:
            try:
                while piece := os.read(ours, 65536):
                    self.seen += piece
            except OSError:  # the terminal's other end is closed
                os.close(ours)

        threading.Thread(target=read, daemon=True).start()
        deadline = time.monotonic() + PATIENCE_S
        wanted = re.compile(".*".join(map(re.escape, step.expected.split())), re.DOTALL)
        while not wanted.search(self.seen.decode(errors="replace")):
            assert self.other.poll() is None, self.seen.decode(errors="replace")
            assert time.monotonic() < deadline, self.seen.decode(errors="replace")
            time.sleep(0.1)

    def stops(self) -> None:
        if self.other is not None:
            other, self.other = self.other, None
            other.send_signal(signal.SIGINT)
            assert other.wait(PATIENCE_S) == 0, self.seen.decode(errors="replace")

    def plain(self, text: str) -> str:
        """Return ``text`` without what may differ, and without the widths of tables, which follow from it."""
        for name, pattern in self.varies:
            text = pattern.sub(name, text)
        text = re.sub(r" {2,}", "  ", re.sub(r"([─━])\1+", r"\1", text))
        return "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())

    def pattern(self, expected: str) -> str:
        return (
            re.escape(self.plain(expected))
            .replace("…\n", r"(?:.*\n)*")
            .replace("…\\\n", r"(?:.*\n)*")
        )


@pytest.fixture
def visitor(private_server, java, tmp_path) -> Iterator[Visitor]:
    folder = tmp_path / "tour"
    folder.mkdir()
    programs = [Path(sys.executable).parent, Path(program("psql")).parent, java / "bin"]
    unset = ("WALTAP_", "PG", "PIP_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(unset)} | {
        "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
        "PGHOST": private_server.host,
        "PGPORT": str(private_server.port),
        "PGUSER": private_server.user,
        "PGDATABASE": "postgres",
        # what the page installs is there; pip says whether all of it is
        "PIP_DRY_RUN": "1",
        "PIP_NO_INDEX": "1",
        "PIP_QUIET": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    text = PAGE.read_text(encoding="utf-8")
    address = f"{private_server.host}:{private_server.port}"
    made = Visitor(folder, address, environment, variables(text))
    yield made
    if made.other is not None:
        made.other.kill()
        made.other.wait()


@pytest.mark.timeout(1500)
def test_the_tutorial_does_what_it_says(visitor):
    for step in steps(PAGE.read_text(encoding="utf-8")):
        visitor.does(step)
    assert "rows in the source" in PAGE.read_text(encoding="utf-8")


def test_another_output_is_reported(visitor):
    with pytest.raises(AssertionError, match="one"):
        visitor.does(Step("", "echo one", "two\n"))
    visitor.does(Step("", "echo 'at 0/16B3748'; echo more", "at 1A/2B3C4D5E\n…\n"))
