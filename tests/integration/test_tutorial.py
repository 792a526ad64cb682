"""The tutorial does what it says: each of its commands is run, and prints what stands below it.

Comments on the page, which readers do not see, say what else there is to know: ``varies`` names what may differ, a
block may run ``in another terminal``, or be asked again ``until`` it says so. A line ``…`` stands for any lines.
"""

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
from tests.harness.servers.postgres import program

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?:<!-- ([^\n]*?) -->\n)?```(console|sql)\n(.*?)```\n", re.DOTALL)
PATIENCE_S = 400.0
"""How long to wait for Spark: a loaded machine starts it slowly, and nothing here is about speed."""

pytestmark = [pytest.mark.needs_postgres, pytest.mark.timeout(1500)]


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
class Reader:
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
def reader(private_server, java, tmp_path) -> Iterator[Reader]:
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
    made = Reader(folder, address, environment, variables(text))
    yield made
    if made.other is not None:
        made.other.kill()
        made.other.wait()


def test_the_tutorial_does_what_it_says(reader):
    for step in steps(PAGE.read_text(encoding="utf-8")):
        reader.does(step)
    assert "rows in the source" in PAGE.read_text(encoding="utf-8")


def test_another_output_is_reported(reader):
    with pytest.raises(AssertionError, match="one"):
        reader.does(Step("", "echo one", "two\n"))
    reader.does(Step("", "echo 'at 0/16B3748'; echo more", "at 1A/2B3C4D5E\n…\n"))
