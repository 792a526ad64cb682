"""The prompt of ``waltap spark sql``: statements over lines, completion, errors."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waltap_spark.cli.prompt import SqlPrompt

COLUMNS = {"orders": ["id", "made", "`odd name`"], "orders_changes": ["_op", "id"], "`a b`": ["x"]}


def test_statements_end_with_a_semicolon_or_an_empty_line_and_errors_do_not_end_the_prompt(
    monkeypatch, tmp_path
):
    lines = "SELECT 1;\nSELECT\n  2\n\n\nbad;\n\\d\n\\d orders\n\\d none\n;\nSELECT 3\n;\nquit\nSELECT 4;\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    ran: list[str] = []
    said: list[str] = []

    def run(statement: str) -> None:
        if statement == "bad":
            raise ValueError("no such thing")
        ran.append(statement)

    def refused(error: Exception) -> bool:
        said.append(str(error))
        return True

    SqlPrompt(run, lambda: COLUMNS, list, said.append, refused).loop(tmp_path / "state/history")
    assert ran == ["SELECT 1", "SELECT\n  2", "SELECT 3"]
    assert said[1:] == [
        "no such thing", "orders\norders_changes\n`a b`", "id\nmade\n`odd name`", "there is no view none; \\d lists them",
    ]  # fmt: skip


def test_an_error_that_is_none_of_the_statement_ends_the_prompt(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 1;\n"))

    def run(_statement: str) -> None:
        raise ConnectionError("Spark is gone")

    with pytest.raises(ConnectionError):
        SqlPrompt(run, dict, list, lambda _line: None, lambda _error: False).loop(
            tmp_path / "history"
        )


def test_views_that_cannot_be_listed_do_not_end_the_prompt(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stdin", io.StringIO("\\d\nSELECT 1;\n"))
    said: list[str] = []

    def columns() -> dict[str, list[str]]:
        raise ValueError("a file is gone")

    def refused(error: Exception) -> bool:
        said.append(str(error))
        return True

    SqlPrompt(said.append, columns, list, said.append, refused).loop(tmp_path / "history")
    assert said[1:] == ["a file is gone", "SELECT 1"]


PROGRAM = """
import pathlib, sys
from waltap_spark.cli.prompt import SqlPrompt

def columns():
    if sys.argv[2] == "gone":
        raise ValueError("a file is gone")
    return {"purchases": ["id", "total"], "`odd name`": ["name"]}

SqlPrompt(
    lambda statement: print("ran", statement), columns, lambda: ["SELECT", "FROM"], print, lambda error: False
).loop(pathlib.Path(sys.argv[1]))
"""
DEADLINE_S = 120
CONTROLS = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\r|\x1b=|\x1b>")


class Terminal:
    """A prompt in a process of its own, at a terminal."""

    def __init__(self, history: Path, views: str = "there") -> None:
        self._master, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, history, views],
            stdin=terminal, stdout=terminal, stderr=terminal,
            env=os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )  # fmt: skip
        os.close(terminal)
        self._seen = b""

    def type(self, keys: str, *shows: str) -> None:
        """Type ``keys`` and wait until the terminal shows some texts, in that order."""
        self._seen = b""
        os.write(self._master, keys.encode())
        self.until(*shows)

    def until(self, *shows: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        wanted = re.compile(".*".join(map(re.escape, shows)).encode(), re.DOTALL)
        while not wanted.search(CONTROLS.sub(b"", self._seen)):
            ready, _, _ = select.select([self._master], [], [], deadline - time.monotonic())
            assert ready, self._seen
            self._seen += os.read(self._master, 4096)

    def end(self) -> None:
        os.write(self._master, b"\x04")
        assert self.process.wait(DEADLINE_S) == 0
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(views: str = "there") -> Terminal:
        made.append(Terminal(tmp_path / "state/history", views))
        made[-1].until("sql>")
        return made[-1]

    yield start
    for each in made:
        each.process.kill()
        each.process.wait()


def test_a_terminal_completes_with_tab_and_remembers_statements(terminal, tmp_path):
    prompt = terminal()
    prompt.type("sel\t", "select")
    prompt.type(" tot\t", "total")
    prompt.type(" FR\t", "FROM")
    prompt.type(" `o\t", "name`")
    prompt.type(", pur\t", "purchases")
    prompt.type(";\n", "ran select total FROM `odd name`, purchases", "sql>")
    prompt.end()
    history = tmp_path / "state/history"
    assert "+select total FROM `odd name`, purchases;\n" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
    again = terminal()
    again.type("\x10", "purchases;")  # Ctrl-P, the statement before
    again.type("\n", "ran select total FROM `odd name`, purchases", "sql>")
    again.end()


def test_a_tab_whose_views_cannot_be_listed_does_not_end_the_line(terminal):
    prompt = terminal("gone")
    prompt.type("sel\t", "sel")
    prompt.type("ect 1;\n", "ran select 1", "sql>")
    prompt.end()


def test_a_home_that_cannot_be_written_keeps_no_history(terminal, tmp_path):
    (tmp_path / "state").write_text("a file, where the folder would be")
    prompt = terminal()
    prompt.type("select 1;\n", "ran select 1", "sql>")
    prompt.end()
