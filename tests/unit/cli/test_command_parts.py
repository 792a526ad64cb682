"""Parts of commands: a database's URI in the place of a profile, questions, how errors end and are shown."""

import sys
from typing import Any

import pytest
import typer
from tests.harness.command import run_program
from typer.main import get_command
from typer.testing import CliRunner

from waltap.base.plugin_errors import SpecMissing
from waltap.cli.application import COMMANDS, application, exit_code, show, show_bug
from waltap.cli.commands.init import without_password
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
from waltap_testing.simulation.clock import VirtualClock

# --- the list of commands ---------------------------------------------------------------------------


def test_the_list_of_commands_has_the_beginning_of_the_help_of_each():
    group: Any = get_command(application)
    context = group.make_context("waltap", ["plugins"])
    for name, built_in in COMMANDS.items():
        help_text = group.get_command(context, name).help
        assert built_in.summary == " ".join(help_text.partition("\n\n")[0].split())


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
