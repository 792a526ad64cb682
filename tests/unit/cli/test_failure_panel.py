"""How errors are shown, and the exit code each ends with."""

import pytest
from waltap.cli.failure import exit_code, show, show_bug
from waltap.errors import (
    COMMAND_LINE,
    ConfigurationError,
    ConnectionLost,
    OffsetError,
    Problem,
    SinkError,
    SourceError,
    WaltapError,
)
from waltap.plugin_errors import SpecMissing


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(ConfigurationError([Problem("a", "b")]), 2, id="configuration"),
        pytest.param(SpecMissing("no sink", known=()), 2, id="plugin"),
        pytest.param(ConnectionLost("gone"), 3, id="retriable"),
        pytest.param(SourceError("refused"), 1, id="source"),
        pytest.param(SinkError("full"), 1, id="sink"),
        pytest.param(OffsetError("gap"), 1, id="offsets"),
        pytest.param(WaltapError("bug"), 1, id="bug"),
    ],
)
def test_the_exit_code_tells_what_a_later_try_may_mend(error: WaltapError, code: int) -> None:
    assert exit_code(error) == code


def text(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_an_error_shows_code_what_cause_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            raise ValueError("line 1\nline 2")
        except ValueError as cause:
            raise SourceError("the server says [no]") from cause
    except SourceError as error:
        show(error)
    assert text(capsys) == (
        "error: WT-2000 source error\n"
        "the server says [no].\n"
        "Cause: ValueError: line 1 line 2\n"
        "\n"
        "`waltap doctor FILE` checks the database and prints what fixes it.\n"
    )


def test_a_cause_that_says_the_same_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            raise OSError("connection failed: db refuses\nIs it running?")
        except OSError as cause:
            raise SourceError("db refuses") from cause
    except SourceError as error:
        show(error)
    assert "Cause" not in text(capsys)


def test_problems_of_a_profile_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    problems = [
        Problem("slot.nam", "is not known", value="[x]", nearest="slot.name"),
        Problem("a", "is wrong", allowed="b, c"),
    ]
    show(ConfigurationError(problems, origin="p.toml"))
    assert text(capsys).splitlines() == [
        "error: WT-1001 configuration error",
        "p.toml has 2 problems:",
        "  • slot.nam is not known; given: [x]; did you mean slot.name?",
        "  • a is wrong; allowed: b, c",
        "",
        "Correct what is named above; `waltap explain FILE` shows every property with its meaning.",
    ]


def test_a_mistake_on_the_command_line_leads_to_the_commands_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(ConfigurationError([Problem("--set", "is not NAME=VALUE")], origin=COMMAND_LINE))
    assert text(capsys).splitlines()[-1] == (
        "Correct what is named above; --help behind the command shows what it takes."
    )


def test_a_bug_shows_where_and_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise KeyError("x")
    except KeyError as error:
        show_bug(error)
    shown = text(capsys)
    assert "WT-9000" in shown
    assert "KeyError: 'x'" in shown
    assert "test_failure_panel.py:" in shown
    assert "WALTAP_TRACEBACK=1" in shown
    assert "Traceback" not in shown


def test_the_traceback_comes_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALTAP_TRACEBACK", "1")
    try:
        raise SourceError("refused")
    except SourceError as error:
        show(error)
    assert "Traceback" in text(capsys)
