"""Parts of commands: a database's URI in the place of a profile, questions, how errors end and are shown, tables as
JSON, and what `waltap status` and `waltap top` draw of a pipeline.
"""

import dataclasses
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console, RenderableType
from tests.harness.command import run_program
from tests.harness.pipeline import until
from typer.main import get_command
from typer.testing import CliRunner

from waltap.base.plugin_errors import SpecMissing
from waltap.base.text import ago, full_in, size
from waltap.changes.transactions.position import Position
from waltap.cli.application import COMMANDS, application, exit_code, show, show_bug
from waltap.cli.commands.init import without_password
from waltap.cli.commands.status import members, profiles, report
from waltap.cli.commands.supervisor import Supervisor
from waltap.cli.profile_source import read
from waltap.cli.terminal import confirm
from waltap.config.resolve import survey
from waltap.errors import (
    ConfigurationError,
    ConnectionLost,
    OffsetError,
    PropertyProblem,
    SinkError,
    SourceError,
    WaltapError,
)
from waltap.plugins.host import Host
from waltap.ports.sink.roles import DownstreamProgress, DownstreamTable
from waltap.services.monitor.counts import SnapshotTableProgress, TableStatus
from waltap.services.monitor.status import (
    PartitionStatus,
    PipelineStatus,
    RecentFailure,
    SchemaChange,
    status_document,
)
from waltap.services.monitor.views import overview, run_view
from waltap_testing.simulation.clock import VirtualClock

# --- the list of commands ---------------------------------------------------------------------------


def test_the_list_of_commands_has_the_beginning_of_the_help_of_each():
    group: Any = get_command(application)
    context = group.make_context("waltap", ["plugins"])
    for name, (_, summary) in COMMANDS.items():
        help_text = group.get_command(context, name).help
        assert summary == " ".join(help_text.partition("\n\n")[0].split())


@pytest.mark.parametrize(
    "line",
    ["doctor s.toml {}", "status s.toml a {}", "offsets {}", "top --sort {}", "{}"],
)
@pytest.mark.parametrize("word", ["postgres://u:tell-nobody@h/d", "password=tell-nobody"])
def test_a_usage_error_quotes_no_secret(line, word):
    found = CliRunner().invoke(application, line.format(word).split())
    assert found.exit_code == 2
    assert "Error: " in found.output
    assert "tell-nobody" not in found.output


# --- a URI as a profile ------------------------------------------------------------------------------

URIS = {
    "postgres://h/d": {"hostname": "h", "dbname": "d"},
    "postgres://u%40x:p%2Fw%3A@h:6000/d%20b": {
        "user": "u@x",
        "password": "p/w:",
        "hostname": "h",
        "port": 6000,
        "dbname": "d b",
    },
    "postgres:///d?host=/run/postgresql": {"hostname": "/run/postgresql", "dbname": "d"},
    "postgres://h/d?sslmode=verify-full&sslrootcert=ca.pem": {
        "hostname": "h",
        "dbname": "d",
        "sslmode": "verify-full",
        "sslrootcert": "ca.pem",
    },
    "postgres://[::1]:5433/d": {"hostname": "::1", "port": 5433, "dbname": "d"},
}


def test_a_uri_becomes_the_source_section():
    for uri, expected in URIS.items():
        raw = read(uri)
        found = {name: setting.value for name, setting in raw.settings.items()}
        assert found == {f"database.{name}": value for name, value in expected.items()}
        assert raw.types["source"].value == "postgres"
    raw = read("postgres://h/d?options=-c%20x%3D1")
    assert raw.settings["driver.options"].value == "-c x=1"
    assert "driver.sslcrl" in read("postgres://h/d?sslcrl=x").settings
    raw = read("postgres://ann:geheim@h/d")
    assert raw.origin == "postgres://ann@h/d"
    assert not [s for s in raw.settings.values() if "geheim" in s.origin]
    alone = survey(read("postgres://u@h/d"), Host(discover=False))  # the framework and no plugin
    assert "pip install 'waltap[postgres]'" in str([str(each) for each in alone.problems])
    for uri in ("postgres://h:port/d", "postgres://[::1/d", "postgres://h:99999/d"):
        with pytest.raises(ConfigurationError, match="DSN: cannot be read"):
            read(uri)


def test_no_part_of_the_password_of_a_sink_is_written_by_init():
    for given, written in (
        ("postgresql://u:secret@h/db", "postgresql://u:*@h/db"),
        ("postgresql://u:p@ss@h/db", "postgresql://u:*@h/db"),
        ("postgresql://u@srv:p@ss:w@h:5432/db?x=a:b@c", "postgresql://u@srv:*@h:5432/db?x=a:b@c"),
        ("http://u:${env:A}tail@h", "http://u:*@h"),
        ("http://u:${env:A}${env:B}@h", "http://u:${env:A}${env:B}@h"),
        ("postgresql://u@[::1]:5432/d@b", "postgresql://u@[::1]:5432/d@b"),
        ("http://h:80?to=a@b", "http://h:80?to=a@b"),
        ("sqlite:///a:b@c/d.db", "sqlite:///a:b@c/d.db"),
    ):
        assert without_password(given) == written.replace("*", "${env:WALTAP_SINK_PASSWORD}")


# --- questions ---------------------------------------------------------------------------------------


def test_a_command_that_gets_no_yes_does_nothing_and_fails():
    """A script must not take it for done."""
    app = typer.Typer()

    @app.command()
    def ask(*, yes: bool = False) -> None:
        confirm("Continue?", yes=yes)
        typer.echo("done")

    for answer, code in (("", 1), ("n\n", 1), ("\n", 1), ("y\n", 0)):
        asked = CliRunner().invoke(app, [], input=answer)
        assert asked.exit_code == code
        assert ("done\n" in asked.output.replace("nothing was done", "")) == (code == 0)
    assert CliRunner().invoke(app, ["--yes"]).exit_code == 0


# --- errors ------------------------------------------------------------------------------------------


def test_the_exit_code_shows_what_a_later_try_may_mend():
    errors: dict[WaltapError, int] = {
        ConfigurationError([PropertyProblem("a", "b")]): 2,
        SpecMissing("no sink", known=()): 2,
        ConnectionLost("gone"): 3,
        SourceError("refused"): 1,
        SinkError("full"): 1,
        OffsetError("gap"): 1,
        WaltapError("bug"): 1,
    }
    assert {type(e): exit_code(e) for e in errors} == {type(e): c for e, c in errors.items()}


Captured = pytest.CaptureFixture[str]


def text(capsys: Captured) -> str:
    return capsys.readouterr().err


def chained(error: WaltapError, cause: Exception) -> WaltapError:
    error.__cause__ = cause
    return error


def test_an_error_shows_code_what_cause_and_remedy(capsys):
    show(chained(SourceError("the server says [no]"), ValueError("line 1\nline 2")))
    assert text(capsys) == (
        "error: WT-2000 source error\n"
        "the server says [no].\n"
        "Cause: ValueError: line 1 line 2\n"
        "\n"
        "`waltap doctor FILE` checks the database and prints remedies.\n"
    )
    same = OSError("connection failed: db refuses\nIs it running?")
    show(chained(SourceError("db refuses"), same))
    assert "Cause" not in text(capsys), "it says the same"


def test_a_bug_shows_where_and_the_traceback_when_asked_for(capsys, monkeypatch):
    try:
        raise KeyError("x")
    except KeyError as error:
        show_bug(error)
    shown = text(capsys)
    for words in ("WT-9000", "KeyError: 'x'", "test_command_parts.py:", "WALTAP_TRACEBACK=1"):
        assert words in shown
    assert "Traceback" not in shown
    monkeypatch.setenv("WALTAP_TRACEBACK", "1")
    show(SourceError("refused"))
    assert "SourceError" in text(capsys)


# --- the process -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "stream", "code"),
    [("--help", "stdout", 0), ("explain postgres://h/d", "stdout", 0), ("docs schema", "stdout", 0)]
    + [("explain absent.toml", "stderr", 2), ("explain --nope", "stderr", 2)],
)
def test_a_reader_that_is_gone_changes_no_exit_code(words, stream, code):
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "waltap", *words.split()], check=False, timeout=300,
        env={**os.environ, "FORCE_COLOR": "1", "PYTHONUNBUFFERED": ""}, **{stream: writer},
    )  # fmt: skip
    os.close(writer)
    assert process.returncode == code


def test_a_full_disk_and_a_closed_output_are_no_traceback():
    command, env = f"{sys.executable} -m waltap", {**os.environ, "PYTHONUNBUFFERED": ""}
    for line, code, said in (
        ("--help >/dev/full", 1, "No space left"),
        ("docs schema >/dev/full", 1, "No space left"),
        ("--help >&-", 0, ""),
        ("explain absent.toml >&-", 2, "absent.toml"),
    ):
        ended = subprocess.run(
            f"{command} {line}", shell=True, check=False, capture_output=True, text=True, env=env
        )
        assert (ended.returncode, ended.stderr.count(said) >= 1) == (code, True)
        assert "Traceback" not in ended.stderr
        assert ended.stderr.count("error:") == bool(code)


SHOW = (
    "import atexit, gc, sys\n"
    "atexit.register(lambda: print(gc.get_threshold()[0], gc.get_freeze_count(), gc.isenabled()))\n"
)
COMMAND = "sys.argv = ['waltap', '--version']\nfrom waltap.cli import main\nmain()"
LIBRARY = "import waltap, waltap.cli.application, waltap.pipeline.engine.engine"


@pytest.mark.parametrize(("code", "rare"), [(COMMAND, True), (LIBRARY, False)])
def test_cycles_are_collected_rarely_in_the_process_of_a_command_alone(code, *, rare):
    found = run_program(sys.executable, "-c", SHOW + code)
    young, kept, enabled = found.stdout.split()[-3:]
    assert (int(young) > 10_000, int(kept) > 10_000, enabled) == (rare, rare, "True")


# --- several pipelines -------------------------------------------------------------------------------


def test_a_process_that_cannot_be_made_is_started_later(tmp_path, monkeypatch, caplog):
    clock = VirtualClock()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    clock.at(4, lambda: monkeypatch.setattr(sys, "executable", "true"))
    supervisor = Supervisor(lambda: [tmp_path / "a.toml", tmp_path / "b.toml"], clock=clock)
    assert supervisor.run() == 0
    for name in ("a", "b"):
        said = [
            each.getMessage()
            for each in caplog.records
            if each.levelname == "WARNING" and name + ".toml" in each.getMessage()
        ]
        assert said == [
            f"{name}.toml cannot be started (No such file or directory); it starts again in {s} s"
            for s in (1, 2, 4)
        ]
    assert clock.now >= 7


def test_a_folder_that_cannot_be_read_again_changes_nothing(tmp_path, monkeypatch, caplog):
    clock, folder = VirtualClock(), tmp_path / "all"
    folder.mkdir()
    (folder / "a.toml").write_text("[source]\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    supervisor = Supervisor(lambda: sorted(profiles(folder)), clock=clock)
    clock.at(1, lambda: folder.rename(tmp_path / "elsewhere"))
    clock.at(2, supervisor.read_again)
    clock.at(4, lambda: monkeypatch.setattr(sys, "executable", "true"))
    assert supervisor.run() == 0
    assert "the folder cannot be read again" in caplog.text
    assert clock.now >= 7, "it watches its pipelines as before"


def test_a_pipeline_that_does_not_end_delays_no_other_and_a_second_interrupt_kills_it(
    tmp_path, monkeypatch
):
    folder, program = tmp_path / "all", tmp_path / "python"
    folder.mkdir()
    first, second = folder / "a.toml", folder / "b.toml"
    first.write_text("[source]\n")
    program.write_text("#!/bin/sh\ntrap '' TERM\ntouch $4.runs\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    supervisor = Supervisor(lambda: sorted(profiles(folder)))

    def act() -> None:
        try:
            until(Path(f"{first}.runs").exists, "the first")
            first.rename(second)
            supervisor.read_again()
            until(Path(f"{second}.runs").exists, "the second")
        finally:
            supervisor.interrupt()
            supervisor.interrupt()

    with ThreadPoolExecutor() as pool:
        acted = pool.submit(act)
        assert supervisor.run() == 0
        acted.result()


def test_a_profile_that_is_back_when_its_pipeline_ends_starts_again(tmp_path, monkeypatch):
    file, program = tmp_path / "a.toml", tmp_path / "python"
    file.write_text("[source]\n")
    program.write_text("#!/bin/sh\necho >> $4.runs\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    found, runs = iter([[file], [], [file]]), Path(f"{file}.runs")
    supervisor = Supervisor(lambda: next(found))

    def act() -> None:
        try:
            until(runs.exists, "the first")
            supervisor.read_again()
            until(lambda: len(runs.read_text()) == 2, "the second")
        finally:
            supervisor.stop()

    with ThreadPoolExecutor() as pool:
        acted = pool.submit(act)
        assert supervisor.run() == 0
        acted.result()


# --- each command that prints a table has --json, and prints valid JSON with it -------------------


TABLES = {
    "changelog list", "changelog readers", "dead-letters list", "doctor", "explain", "plan", "plugins",
    "signal", "slot list", "slot show", "spark maintain", "spark sql", "spark status", "spark top",
    "spark verify", "sql verify", "status", "tail", "top", "verify",
}  # fmt: skip
"""Commands whose answer is a table or a list of facts."""

OTHERS = {
    "changelog expire", "changelog vacuum", "dead-letters drop", "dead-letters redeliver", "docs",
    "docs schema", "drop", "init", "offsets clear", "offsets export", "offsets import", "offsets set",
    "plugins new", "record", "repair", "replay", "run", "slot drop", "snapshot", "spark apply",
    "spark resume", "sql sequences", "tables add", "tables remove",
    "dead-letters show", "offsets show",  # they print JSON always
    "demo",  # its screen changes while it works; `waltap verify --json` repeats its comparison
}  # fmt: skip
"""Commands that do something and report it in lines."""


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", {})
    for child, nested in children.items():
        yield from leaves(f"{name} {child}", nested)
    if not children or getattr(command, "invoke_without_command", False):
        yield name, command


def every_command() -> dict[str, Any]:
    root: Any = get_command(application)
    context = root.make_context("waltap", ["plugins"])
    found = {}
    for name in COMMANDS:
        found.update(leaves(name, root.get_command(context, name)))
    for name in set(Host().commands) - set(COMMANDS):
        found.update(leaves(name, root.plugin_command(name)))
    return found


def test_each_command_that_prints_a_table_has_json():
    commands = every_command()
    assert commands.keys() == TABLES | OTHERS, "name each command in one of the two sets"
    missing = {
        name for name in TABLES if not any("--json" in p.opts for p in commands[name].params)
    }
    assert missing == set()


@pytest.fixture
def profile(tmp_path) -> Path:
    path = tmp_path / "waltap.toml"
    path.write_text(
        "[source]\ntype = 'postgres'\nname = 'shop'\ntopic.prefix = 'shop'\n"
        "database.dbname = 'shop'\n[sink]\ntype = 'jsonl'\npath = 'out'\n"
    )
    return path


@pytest.mark.parametrize(
    "command",
    [
        "plugins --json",
        "explain PROFILE --json",
        "dead-letters list PROFILE --json",
        "top FOLDER --json",
    ],
)
def test_json_is_valid(command, profile, tmp_path):
    given = {"PROFILE": str(profile), "FOLDER": str(tmp_path)}
    words = [given.get(word, word) for word in command.split()]
    result = CliRunner().invoke(application, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) is not None


# --- what `waltap status` and `waltap top` draw ---------------------------------------------------


AT = 1_000_000_000


def partitions(lag_bytes: int) -> tuple[PartitionStatus, ...]:
    position = Position(0x100)
    part = PartitionStatus(
        name="", received_lsn=0x300, written=position, durable=position, confirmed_lsn=0x100,
        server_lsn=0x400, lag_bytes=lag_bytes, lag_ms=65_000,
    )  # fmt: skip
    return (part,)


def document(name: str, **changes: Any) -> dict[str, Any]:
    status = PipelineStatus(
        pipeline=name, at_ms=AT, started_ms=AT - 7_200_000, state="streaming",
        state_since_ms=AT - 90_000, partitions=partitions(0x300), events=1234, transactions=7,
        events_per_second=((3, 10.0), (60, 5.0)), captured_tables=("public.a", "public.b[x]"),
    )  # fmt: skip
    status = dataclasses.replace(status, **changes)
    return msgspec.json.decode(msgspec.json.encode(status_document(status)))


def drawn(view: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=200, highlight=False).print(view)
    return out.getvalue()


def line(name: str, run: dict[str, Any] | None, problem: str = "") -> dict[str, Any]:
    return {"pipeline": name, "run": run, "stored_ms": None, "problem": problem}


def test_a_run_shows_where_it_is_and_what_went_wrong():
    failure = RecentFailure(
        at_ms=AT - 5000, code="WT-2001", problem="the link [broke]", retried=True
    )
    tables = (
        SnapshotTableProgress(table="public.big", rows=500, estimate=1000),
        SnapshotTableProgress(table="public.a", rows=3, estimate=3, complete=True),
    )
    failure = dataclasses.replace(failure, remedy="Mend it.", times=3)
    spark = DownstreamProgress(
        stage="spark", lsn=0x80, lag_bytes=0x80, current=False, committed_ms=AT - 30_000,
        tables=(DownstreamTable(table="public.a", lsn=0x70, failed="no [key]"),),
    )  # fmt: skip
    busy = TableStatus(
        table="public.a", creates=5, updates=6, deletes=7, truncates=0, reads=3,
        commit_lsn=0x90, committed_ms=AT - 3000,
    )  # fmt: skip
    ddl = SchemaChange(at_ms=AT - 60_000, table="public.b[x]", what="c: added (text)")
    reported = drawn(
        run_view(
            document(
                "shop", failures=(failure,), snapshot=tables, reconnects=2, downstream=(spark,),
                tables=(busy,), schema_changes=(ddl,), dead_letters=2, left_out=4, open_gaps=1,
            )
        )
    )  # fmt: skip
    for said in (
        "streaming for 90 s", "1,234 events (0 from snapshots)", "started 2 h ago",
        "768 bytes; the last change came 65 s after its commit",
        "server 0/400, received 0/300", "WT-2001 5 s ago, 3 times, retried: the link [broke]", "Mend it.",
        "0/80, 128 bytes behind the sink, its last commit is 30 s old; 1 table suspended: no [key]",
        "5 inserts, 6 updates, 7 deletes; 3 s ago at 0/90", "public.b[x] c: added (text), 60 s ago",
        "4 events, 2 stored as dead letters", "waltap repair",
        "500 rows of about 1,000", "1 table read", "2 reconnects", "public.b[x]",
    ):  # fmt: skip
        assert said in reported


def test_a_stage_without_a_commit_is_not_compared():
    spark = DownstreamProgress(stage="spark", lsn=0, lag_bytes=None, current=False)
    reported = drawn(run_view(document("shop", downstream=(spark,))))
    assert "nothing applied yet" in reported
    assert "behind the sink" not in reported


@pytest.mark.parametrize(
    ("order", "names"), [("name", "abc"), ("lag", "cab"), ("rate", "acb"), ("state", "bac")]
)
def test_the_order_of_lines(order, names):
    found = [
        line("a", document("a", partitions=partitions(5), events_per_second=((3, 9.0),))),
        line("b", None),
        line("c", document("c", partitions=partitions(7), events_per_second=((3, 1.0),))),
    ]
    reported = [
        text.split()[0] for text in drawn(overview(found, order)).splitlines()[3:] if text.strip()
    ]
    assert "".join(reported) == names


def test_spans_and_sizes():
    assert [ago(ms) for ms in (-5, 1500, 600_000, 7_200_000, 864_000_000)] == [
        "0 s", "2 s", "10 min", "2 h", "10 days",
    ]  # fmt: skip
    assert [size(octets) for octets in (None, 7, 2048, 3 << 40)] == [
        "?",
        "7 bytes",
        "2.0 KiB",
        "3.0 TiB",
    ]


def test_a_folder_has_the_pipelines_of_its_profiles_or_of_its_states(tmp_path):
    profiles, states = tmp_path / "profiles", tmp_path / "profiles" / ".waltap"
    (states / "old").mkdir(parents=True)
    (states / "old" / "offset.json").write_text("{}")
    (states / "empty").mkdir()
    source = "[source]\ntype = 'postgres'\n'database.hostname' = 'h'\n'database.dbname' = 'd'\n"
    (profiles / "one.toml").write_text(f"name = 'first'\n{source}'database.user' = 'u'\n")
    (profiles / "two.toml").write_text((profiles / "one.toml").read_text())
    (profiles / "torn.toml").write_text("[source]\nnothing")
    (profiles / "other.toml").write_text("[project]\nname = 'x'\n")
    (profiles / "dotted.TOML").write_text("source.type = 'postgres'\n")
    (profiles / "strimzi.yaml").write_text("kind: KafkaConnector\n")
    (profiles / "other.yaml").write_text("a: 1  # for a KafkaConnector\n")
    named = ["dotted", "first", "strimzi", "torn"]
    assert [each.name for each in members(profiles, Host())] == named
    found = {each.name: each for each in members(profiles, Host())}
    assert found["first"].state_dir == states / "first"
    assert found["first"].origin == profiles / "one.toml"
    assert report(found["torn"])["problem"]
    assert report(found["first"]) | {"origin": ""} == {
        "pipeline": "first", "origin": "", "run": None, "stored_ms": None, "problem": "",
    }  # fmt: skip
    (old,) = members(states, Host())
    assert (old.name, report(old)["stored_ms"] is not None) == ("old", True)


def test_a_forecast_of_more_than_a_year_says_nothing():
    assert full_in(102_921 * 86_400.0) == "not full within a year"
    assert full_in(7200) == "full in 2 h"
    assert size(195_673_608) == "186.6 MiB"
