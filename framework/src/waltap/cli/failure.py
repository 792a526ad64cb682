"""How errors end a command: a short panel with code, what, why and remedy, and an exit code."""

import traceback
from typing import TYPE_CHECKING

from waltap.base.environment import tracebacks
from waltap.base.redaction import redacted
from waltap.base.text import printable
from waltap.cli.live_console import notices
from waltap.errors import (
    ConfigurationError,
    PluginError,
    PropertyProblem,
    RetryVerdict,
    WaltapError,
)

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["exit_code", "show", "show_bug"]


def exit_code(error: WaltapError) -> int:
    """Return 2 for bad configuration, 3 for what a later try may fix, 1 for the rest."""
    if isinstance(error, ConfigurationError | PluginError):
        return 2
    return 1 if error.retry is RetryVerdict.NEVER else 3


def show(error: WaltapError) -> None:
    """Print an error for people; with WALTAP_TRACEBACK=1 its traceback first."""
    from rich.text import Text

    body = Text()
    if isinstance(error, ConfigurationError):
        noun = "problem" if len(error.problems) == 1 else "problems"
        body.append(f"{error.fields['origin']} has {len(error.problems)} {noun}:\n")
        for problem in error.problems:
            _append_problem(body, problem)
    else:
        body.append(printable(error.problem.rstrip(".")) + ".\n")
        cause = "" if error.__cause__ is None else _one_line(error.__cause__)
        said = str(error.__cause__) in error.problem or error.problem.rstrip(".") in cause
        if cause and not said:
            body.append(f"Cause: {cause}\n", style="dim")
    body.append("\n")
    body.append(error.advice(), style="green")
    _print(error, f"{error.code} {_title(error)}", body)


def show_bug(error: Exception) -> None:
    """Print an exception that nobody expected, as what it is: a bug of ours or of a plugin."""
    from rich.text import Text

    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    body = Text(f"{_one_line(error)}{where}\n\n")
    body.append(
        f"{WaltapError.remedy} WALTAP_TRACEBACK=1 shows the whole traceback.", style="green"
    )
    _print(error, f"{WaltapError.code} bug", body)


def _append_problem(body: "Text", problem: PropertyProblem) -> None:
    body.append("  • ")
    body.append(problem.property, style="bold")
    if problem.native:
        body.append(f" ({problem.native})", style="dim")
    body.append(f" {printable(problem.what)}")
    if problem.value is not None:
        body.append(f"; given: {problem.value}")
    if problem.allowed:
        body.append(f"; allowed: {problem.allowed}", style="dim")
    if problem.nearest:
        body.append(f"; did you mean {problem.nearest}?", style="yellow")
    body.append("\n")


def _title(error: WaltapError) -> str:
    """Return the class name as words: SlotActive, slot active."""
    name = type(error).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _print(error: BaseException, title: str, body: "Text") -> None:
    from rich.text import Text

    console = notices()
    if redacted(body.plain) != body.plain:
        body = Text(redacted(body.plain))  # colours matter less
    if tracebacks():
        trace = redacted("".join(traceback.format_exception(error)))
        console.print(trace, markup=False, soft_wrap=True)
    if console.is_terminal:
        from rich.panel import Panel

        console.print(Panel(body, title=title, title_align="left", border_style="red"))
    else:
        console.print(f"error: {title}", markup=False, soft_wrap=True)
        console.print(body, soft_wrap=True)
