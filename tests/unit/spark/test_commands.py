"""Commands of Spark tables: their settings, the prompt, what they show of commits, and what they lack to begin."""

import io
import logging
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import msgspec
import py4j.java_gateway
import pytest
from rich.console import Console
from tests.harness.changelog import WrittenLog, relation
from typer.testing import CliRunner

from waltap_sinks.changelog import ChangeLog
from waltap_spark.apply.external_snapshots import read_error
from waltap_spark.cli import commands
from waltap_spark.cli.commands import application
from waltap_spark.cli.prompt import SqlPrompt
from waltap_spark.config.properties import SparkProperties
from waltap_spark.driver import driver
from waltap_spark.driver.settings import FAILED
from waltap_spark.errors import (
    CatalogueUnreachable,
    JavaMissing,
    JvmEnded,
    PysparkUnfit,
    SparkRefused,
    first_words,
)
from waltap_spark.session import java as requirement
from waltap_spark.session.failures import explained_failures, refused
from waltap_spark.session.java import _require_fit as require_fit
from waltap_spark.session.java import require_java, require_pyspark
from waltap_spark.session.session import local_settings
from waltap_spark.sink import output_monitor
from waltap_spark.sink.output_monitor import AppliedSoFar, OutputMonitor, OutputProgress, TableLag
from waltap_spark.state.output import OutputState, SparkOutput, TableState

# --- settings of the profile's sink that writes the tables ----------------------------------------


PROFILE = """
name = "shop"

[source]
type = "postgres"
"database.hostname" = "localhost"
"database.user" = "waltap"
"database.dbname" = "shop"

[[sinks]]
name = "first"
type = "spark"
path = "first"
"spark.ui.enabled" = "first"

[[sinks]]
name = "lines"
type = "jsonl"
path = "lines.jsonl"

[[sinks]]
name = "second"
type = "spark"
path = "second"
"spark.ui.enabled" = "second"
"""


class SessionRequested(Exception):  # noqa: N818 - it ends a command where a session would start
    """The settings of the session that a command starts."""


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (("--profile", "shop.toml"), "second"),
        (("--profile", "shop.toml", "--set", "spark.ui.enabled=given"), "given"),
        ((), None),
    ],
    ids=["of-the-profile", "of-the-command-line", "none"],
)
def test_a_query_starts_spark_with_the_settings_of_the_profile(
    tmp_path, monkeypatch, words, setting
):
    def requested(*_words: object, settings: dict[str, str], **_more: object) -> None:
        raise SessionRequested(settings)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "start_session", requested)
    (tmp_path / "shop.toml").write_text(PROFILE)
    output = SparkOutput("second/tables")
    begun = output.open("second/changelog")
    output.commit(msgspec.structs.replace(begun, number=1))
    output.close()
    asked = CliRunner().invoke(commands.application, ["sql", "second", "select 1", *words])
    assert isinstance(asked.exception, SessionRequested), asked.output
    (settings,) = asked.exception.args
    assert settings.get("spark.ui.enabled") == setting


# --- the prompt: statements over lines, completion, errors ----------------------------------------


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


def test_a_pipe_gets_no_prompts_and_views_that_cannot_be_listed_do_not_end_it(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr("sys.stdin", io.StringIO("\\d\nSELECT 1"))
    said: list[str] = []

    def columns() -> dict[str, list[str]]:
        raise ValueError("a file is gone")

    def refused(error: Exception) -> bool:
        said.append(str(error))
        return True

    SqlPrompt(said.append, columns, list, said.append, refused).loop(tmp_path / "history")
    assert said[1:] == ["a file is gone", "SELECT 1"]
    assert capsys.readouterr().out == ""


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


# --- what a commit brought to each table, and what waits, read off the change log -----------------


ORDERS = relation("public.orders", [("id", "int4"), ("state", "text")])
ITEMS = relation("public.items", [("id", "int4"), ("state", "text")], oid=77)


class Lake(WrittenLog):
    """A change log, and the commits of tables that follow it, without Spark."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "lake", str(folder / "lake/changelog"))
        self.open()
        self.output = SparkOutput(f"{self.folder}/tables")
        self.state: OutputState = self.output.open(self.path)
        self.next = 1

    def change(self, **rows: int) -> None:
        for relation_ in (ORDERS, ITEMS):
            for _ in range(rows.get(relation_.table, 0)):
                self.db.insert(relation_, [str(self.next), "new"])
                self.next += 1
        self.flush(self.db.commit())

    def commit(self, **still: str) -> None:
        last = self.newest
        assert last.last_commit_ts is not None
        tables = {}
        for name in ("orders", "items"):
            table = TableState(schema="public", table=name)
            if name in still:
                before = self.state.tables.get(f"public.{name}", table)
                at = before.log_position if before.failed else self.state.log_position
                table = msgspec.structs.replace(table, failed=still[name], log_position=at)
            tables[f"public.{name}"] = table
        self.state = msgspec.structs.replace(
            self.state,
            number=self.state.number + 1,
            log_position=last.log_position,
            committed_at=(last.last_commit_ts + 1_500_000) / 1e6,
            last_commit_ts=last.last_commit_ts,
            tables=tables,
        )
        self.output.commit(self.state)

    def now(self, after_s: int = 0) -> int:
        return (self.newest.last_commit_ts or 0) // 1000 + after_s * 1000


@pytest.fixture
def lake(tmp_path) -> Any:
    made = Lake(tmp_path)
    yield made
    made.close()
    made.output.close()


def test_a_table_that_stands_still_gets_nothing_and_all_waits(lake):
    lake.change(orders=1, items=1)
    lake.commit()
    lake.change(orders=2, items=4)
    lake.commit(items="its type changed")
    found = OutputMonitor(lake.output).progress(lake.now())
    assert found.batches[-1].rows == {"public.orders": 2}
    assert [(each.waiting_rows, each.failed) for each in found.tables] == [
        (4, "its type changed"),
        (0, ""),
    ]


@pytest.mark.parametrize("how", ["expired", "damaged"])
def test_a_table_whose_manifests_cannot_be_read_hides_what_waits_for_others(lake, how):
    lake.change(orders=1, items=1)
    lake.commit()
    lake.change(items=4)
    lake.commit(items="its type changed")
    lake.change(orders=2)
    second = lake.manifests()[1]
    if how == "expired":
        lake.log.expire(second.log_position, "99991231T235")
    else:
        lake.log.store.publish(second.path, b"{")
    watch = OutputMonitor(lake.output)
    for after_s in (3, 4):
        found = watch.progress(lake.now(after_s)).tables
        assert [(each.waiting_rows, each.lag_ms // 1000) for each in found] == [
            (0, 0),
            (2, after_s),
        ]
    lake.commit(items="its type changed", orders="its, too")
    lake.change(orders=3)
    assert [each.waiting_rows for each in watch.progress(lake.now()).tables] == [0, 5]


@pytest.mark.parametrize(
    ("table_format", "advice"), [("parquet", "--full-refresh"), ("delta", "another sink.path")]
)
def test_a_table_whose_manifests_are_gone_gets_advice_that_its_format_allows(
    lake, table_format, advice
):
    lake.change(items=1)
    lake.state = msgspec.structs.replace(lake.state, format=table_format)
    lake.commit(items="WT-5106 they are gone")
    found = CliRunner().invoke(application, ["status", str(lake.folder)])
    assert advice in " ".join(found.output.split())
    in_parquet = table_format == "parquet"
    assert ("--full-refresh" in found.output) == in_parquet
    words = ["resume", str(lake.folder), "items", "--full-refresh"]
    assert (CliRunner().invoke(application, words).exit_code == 0) == in_parquet


def test_rows_whose_manifests_were_expired_are_unknown_and_later_ones_are_not(lake):
    lake.change(orders=1)
    lake.change(orders=2)
    lake.commit()
    lake.change(items=3)
    lake.commit()
    lake.log.expire(lake.manifests()[0].log_position, "99991231T235")
    found = OutputMonitor(lake.output).progress(lake.now())
    assert [each.rows for each in found.batches] == [None, {"public.items": 3}]


def test_the_command_and_the_status_page_show_it(lake):
    lake.change(orders=1200)
    lake.commit()
    lake.change(items=34)
    shown = CliRunner().invoke(
        application, ["top", str(lake.folder), "--once"], env={"COLUMNS": "120"}
    )
    assert shown.exit_code == 0
    for text in ("public.orders", "1,200", "public.items", "34", "#1", "1.5 s late"):
        assert text in shown.output
    reported = CliRunner().invoke(application, ["top", str(lake.folder), "--json"])
    assert msgspec.json.decode(reported.output)["batches"][0]["rows"] == {"public.orders": 1200}
    properties = SparkProperties(path=str(lake.folder))
    progress = AppliedSoFar(properties).downstream_progress(lake.newest.log_position)
    assert {each.table: (each.batch_rows, each.waiting_rows) for each in progress.tables} == {
        "public.orders": (1200, 0),
        "public.items": (0, 34),
    }


def test_brackets_in_names_are_shown():
    lag = TableLag(table="public.[/x]", waiting_rows=0, lag_ms=0)
    console = Console(file=io.StringIO())
    console.print(output_monitor.drawn(OutputProgress(batches=(), tables=(lag,)), "[/lake]"))
    assert all(name in console.file.getvalue() for name in ("[/lake]", "public.[/x]"))


def test_the_first_commit_appears_while_the_command_runs(lake, monkeypatch):
    drawn: list[Any] = []

    def draw(view: Callable[[], Any], _every_s: float) -> None:
        drawn.append(view())
        lake.commit()
        drawn.append(view())

    lake.change(orders=1)
    monkeypatch.setattr(commands, "draw_until_interrupted", draw)
    assert CliRunner().invoke(application, ["top", str(lake.folder)]).exit_code == 0
    assert "nothing was applied here yet" in str(drawn[0])
    assert str(drawn[1].columns[0]._cells) == "['public.items', 'public.orders']"


def test_what_waits_is_counted_on(lake, monkeypatch):
    """The log behind a table may be that of days: nobody reads all of it at each look."""
    lake.change(orders=1, items=1)
    lake.commit()
    lake.change(items=1)
    lake.commit(items="a type")
    watch = OutputMonitor(lake.output)
    read: list[object] = []
    manifests = ChangeLog.manifests

    def counted(self: ChangeLog, *log_positions: Any) -> Any:
        for manifest in manifests(self, *log_positions):
            read.append(manifest)
            yield manifest

    watch.progress(lake.now())
    for rows in range(1, 4):
        lake.change(items=rows, orders=1)
        now = lake.now(after_s=3)
        with monkeypatch.context() as patch:
            patch.setattr(ChangeLog, "manifests", counted)
            read.clear()
            found = watch.progress(now).tables
            assert len(read) == 1, "what is new, and no more"
        assert found == OutputMonitor(lake.output).progress(now).tables
    lake.state = msgspec.structs.replace(
        lake.state,
        tables={name: TableState(schema="public", table=name[7:]) for name in lake.state.tables},
    )
    lake.commit()
    assert [each.waiting_rows for each in watch.progress(lake.now()).tables] == [0, 0]
    lake.change(items=2)
    assert [each.waiting_rows for each in watch.progress(lake.now()).tables] == [2, 0]


# --- no Java or pyspark, or the wrong one, is said in words before Spark says it ------------------


def program(folder: Path, script: str) -> Path:
    """Put a ``java`` there that is a shell script."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        (None, r"WT-5201 .*JAVA_HOME=.* has no bin/java.*apt-get"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is version 11"),
        (
            "echo 'openjdk version \"17.0.2\"' >&2; echo java.base@17.0.2",
            r"without the module jdk\.incubator\.vector",
        ),
        ("echo 'openjdk version \"21\"' >&2; echo jdk.incubator.vector@21", ""),
    ],
    ids=["absent", "old", "reduced", "whole"],
)
def test_a_java_that_does_not_serve_is_refused(tmp_path, monkeypatch, script, reported):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    path = program(tmp_path, script) if script else None
    if not reported:
        assert require_java() == path
        return
    with pytest.raises(JavaMissing, match=reported):
        require_java()


def test_a_java_that_was_killed_is_asked_again_and_not_taken_for_another(tmp_path, monkeypatch):
    killed = f"test -e {tmp_path}/again || {{ touch {tmp_path}/again; kill -9 $$; }}"
    path = program(tmp_path, f"{killed}; echo 'version \"21\"' >&2; echo jdk.incubator.vector@21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == path
    path.write_text("#!/bin/sh\nkill -9 $$\n")
    require_fit.cache_clear()
    with pytest.raises(JavaMissing, match="-version was killed by signal 9"):
        require_java()


@pytest.mark.parametrize("found", ["3.5.9", "4.0.5", "4.4.0", "5.0.0", "odd", None])
def test_a_pyspark_of_another_generation_or_none_is_refused(found, monkeypatch):
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(requirement, "version", version)
    state = f"version {found}" if found else "not installed"
    reported = rf"WT-5210 pyspark is {state}.*pip install 'pyspark==4\.2\.\*'"
    with pytest.raises(PysparkUnfit, match=reported):
        require_pyspark()


@pytest.mark.parametrize("found", ["4.1.0", "4.1.4", "4.2.1", "4.3.0", "4.3.0.dev1"])
def test_a_pyspark_of_a_generation_that_serves_is_taken(found, monkeypatch):
    monkeypatch.setattr(requirement, "version", lambda _name: found)
    assert require_pyspark() == found


@pytest.mark.parametrize(
    ("processors", "is_one"), [(2, True), (4, True), (5, False), (None, False)]
)
def test_few_processors_have_one_compiler_by_default(processors, is_one):
    options = local_settings(processors).get("spark.driver.defaultJavaOptions", "")
    assert ("-XX:TieredStopAtLevel=1" in options) == is_one
    assert local_settings(processors)["spark.driver.memory"] == "1g"


# --- what is reported an error that came out of a JVM ---------------------------------------------------

JAVA = """An error occurred while calling o80.sql.
: org.apache.iceberg.jdbc.UncheckedSQLException: Failed to execute: INSERT
\tat org.apache.iceberg.jdbc.JdbcCatalog.execute(JdbcCatalog.java:780)
\tat org.apache.spark.util.Utils$.getTry$lzy(Utils.scala:1453)
\tSuppressed: org.apache.spark.util.Utils$OriginalTryStackTraceException: Full stacktrace
\t\tat java.base/java.lang.Thread.run(Thread.java:840)
\t\t... 22 more
Caused by: org.sqlite.SQLiteException: A PRIMARY KEY constraint failed (UNIQUE constraint failed)
\tat org.sqlite.core.DB.newSQLException(DB.java:1179)
"""


def test_frames_are_no_words():
    assert first_words(ValueError(JAVA)) == (
        "An error occurred while calling o80.sql. "
        ": org.apache.iceberg.jdbc.UncheckedSQLException: Failed to execute: INSERT "
        "Caused by: org.sqlite.SQLiteException: A PRIMARY KEY constraint failed (UNIQUE constraint failed)"
    )


def test_what_follows_a_blank_line_is_a_plan():
    assert first_words(ValueError("no such column\n  at the place (x)\n\nPlan")) == (
        "no such column at the place (x)"
    )
    assert first_words(ValueError("")) == "ValueError"


def test_what_has_no_code_gets_one_and_a_lack_of_memory_its_own():
    error = refused(ValueError("nobody listens"))
    assert isinstance(error, SparkRefused)
    assert str(error).startswith("WT-5268 nobody listens. See Spark's text")
    error = refused(ValueError("Job aborted: java.lang.OutOfMemoryError: Java heap space"))
    assert isinstance(error, JvmEnded)
    assert "spark.driver.memory, now " in str(error)  # that of a session, where there is one
    again = refused(ValueError("java.lang.OutOfMemoryError"), "512m")
    assert "spark.driver.memory, now 512m)" in str(again)
    assert refused(error) is error
    error = refused(
        ValueError("Invalid update timestamp 1000: before last snapshot log entry at 601000")
    )
    assert str(error).startswith("WT-5275 the clock is 600 s behind the table's last commit: ")
    error = refused(ValueError("Invalid schema: multiple fields for name a.b.c: 3 and 4"))
    assert str(error).startswith("WT-5234 Invalid schema")


def test_traces_of_py4j_are_not_logged(caplog):
    def record(file: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, file, 1, "empty answer", None, None)

    with explained_failures(None):
        for file in (py4j.java_gateway.__file__, __file__):
            logging.getLogger().handle(record(file))
    logging.getLogger().handle(record(py4j.java_gateway.__file__))
    assert [each.pathname for each in caplog.records] == [__file__, py4j.java_gateway.__file__]


def test_a_catalogue_that_is_away_does_not_take_rows_that_wait_from_a_table():
    """Another try has them; what a table does not take is for good."""
    assert read_error(CatalogueUnreachable("it is away", catalog="lake"), "public.t") is None
    assert driver._status(CatalogueUnreachable("it is away", catalog="lake")) == FAILED
    assert driver._status(SparkRefused("it is away")) == FAILED
