"""The prompt of ``waltap spark sql``: statements over lines, completion, what it says of errors."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from waltap_spark.prompt import SqlCompletion, SqlPrompt

COLUMNS = {"orders": ["id", "made", "`odd name`"], "orders_changes": ["_op", "id"], "`a b`": ["x"]}


@pytest.mark.parametrize(
    ("begun", "statement", "words"),
    [
        ("sel", "sel", ["select"]),
        ("SEL", "SEL", ["SELECT"]),
        ("ord", "SELECT * FROM ord", ["orders", "orders_changes", "order"]),
        ("i", "SELECT i FROM orders", ["id", "inner", "in", "is", "intersect", "interval"]),
        ("od", "SELECT od FROM orders", ["`odd name`"]),
        ("`odd", "SELECT `odd FROM orders", ["`odd name`"]),
        ("_", "SELECT _ FROM orders", []),
        ("_", "SELECT _ FROM orders_changes", ["_op"]),
        ("orders.m", "SELECT orders.m FROM orders", ["orders.made"]),
        ("`a", "SELECT * FROM `a", ["`a b`"]),
        ("", "SELECT  FROM `a b`", ["x", "`a b`", "orders", "orders_changes"]),
        ("nothing", "nothing", []),
    ],
)
def test_words_are_completed_by_what_the_statement_names(
    begun: str, statement: str, words: list[str]
) -> None:
    assert SqlCompletion(COLUMNS).words(begun, statement) == words


def test_statements_end_with_a_semicolon_or_an_empty_line_and_errors_do_not_end_the_prompt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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

    SqlPrompt(run, lambda: COLUMNS, said.append, refused).loop(tmp_path / "state/history")
    assert ran == ["SELECT 1", "SELECT\n  2", "SELECT 3"]
    assert said[1:] == [
        "no such thing", "orders\norders_changes\n`a b`", "id\nmade\n`odd name`", "there is no view none; \\d lists them",
    ]  # fmt: skip


def test_an_error_that_is_none_of_the_statement_ends_the_prompt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 1;\n"))

    def run(_statement: str) -> None:
        raise ConnectionError("Spark is gone")

    with pytest.raises(ConnectionError):
        SqlPrompt(run, dict, lambda _line: None, lambda _error: False).loop(tmp_path / "history")


def test_views_that_cannot_be_listed_do_not_end_the_prompt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\\d\nSELECT 1;\n"))
    said: list[str] = []

    def columns() -> dict[str, list[str]]:
        raise ValueError("a file is gone")

    def refused(error: Exception) -> bool:
        said.append(str(error))
        return True

    SqlPrompt(said.append, columns, said.append, refused).loop(tmp_path / "history")
    assert said[1:] == ["a file is gone", "SELECT 1"]


PROGRAM = """
import pathlib, sys
from waltap_spark.prompt import SqlPrompt
columns = {"purchases": ["id", "total"], "customers": ["name"]}
SqlPrompt(lambda s: print("ran", s), lambda: columns, print, lambda e: False).loop(pathlib.Path(sys.argv[1]))
"""


def typed(history: Path, keys: bytes) -> str:
    """Return what a terminal shows while ``keys`` are typed at a prompt of a process of its own."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, history], stdin=terminal, stdout=terminal, stderr=terminal,
        env=os.environ | {"TERM": "dumb", "INPUTRC": "/dev/null"},
    )  # fmt: skip
    os.close(terminal)
    seen = b""
    while b"sql> " not in seen:
        seen += os.read(master, 4096)
    os.write(master, keys)
    try:
        while piece := os.read(master, 4096):
            seen += piece
    except OSError:  # the process has ended
        pass
    os.close(master)
    assert process.wait(60) == 0, seen
    return seen.decode().replace("\r\n", "\n")


def test_a_terminal_completes_with_tab_and_remembers_statements(tmp_path: Path) -> None:
    history = tmp_path / "state" / "history"
    said = typed(history, b"sel\t tot\t from pur\t;\n\x04")
    assert "ran select total from purchases" in said, said
    assert history.read_text() == "select total from purchases;\n"
    assert history.stat().st_mode & 0o077 == 0
    again = typed(history, b"\x10\n\x04")  # Ctrl-P, the statement before
    assert "ran select total from purchases" in again, again
