"""The terminal of commands: groups, output, questions, and views that are redrawn."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from waltap.base.environment import dumb_terminal, forced_terminal
from waltap.base.text import printable_lines
from waltap.errors import usage_error

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


PIPE_WIDTH = 160
"""Columns where the other end is no terminal and says nothing of its width."""


def answers() -> "Console":
    """Return the console of standard output."""
    return _console(stderr=False)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines without escapes: foreign text must not control a terminal."""
    typer.echo(printable_lines(text), err=err)


def notices() -> "Console":
    """Return the console of standard error."""
    return _console(stderr=True)


def notices_are_piped() -> bool:
    """Return whether standard error is no terminal: lines then go there unchanged."""
    return not sys.stderr.isatty() and not forced_terminal()


def _console(*, stderr: bool) -> "Console":
    from waltap.services.monitor.views import SafeConsole

    console = SafeConsole(stderr=stderr, highlight=False)
    if console.is_terminal and not dumb_terminal():
        return console
    # no bars, panels or colours: a dumb terminal is written to as a pipe is
    width = console.width if console.is_terminal else PIPE_WIDTH
    return SafeConsole(stderr=stderr, width=width, highlight=False, force_terminal=False)


def command_group(help_: str) -> typer.Typer:
    """Return a group of commands, whose help is shown without one."""
    return typer.Typer(add_completion=False, no_args_is_help=True, help=help_)


def answered(option: str, question: str, *, default: str) -> str:
    """Ask a question. Raises: ConfigurationError without a terminal."""
    try:
        return str(typer.prompt(question, default=default))
    except typer.Abort:
        if sys.stdin.isatty():
            raise
    raise usage_error(
        option, "is not given, and standard input has no answer", allowed=f"such as {default}"
    )


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless ``yes``. Raises: typer.Abort, typer.Exit."""
    if yes:
        return
    try:
        agreed = typer.confirm(question)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        echo(
            "\nStandard input has no answer: nothing was done. --yes skips the question.", err=True
        )
        raise typer.Exit(1) from None
    if not agreed:
        raise typer.Abort


def draw_until_interrupted(view: "Callable[[], RenderableType]", every_s: float) -> None:
    """Draw ``view`` repeatedly until Ctrl-C.

    Without a terminal the views follow each other.
    """
    from rich.live import Live

    console = answers()
    try:
        if not console.is_terminal:
            while True:
                console.print(view())
                time.sleep(every_s)
        with Live(view(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                live.update(view(), refresh=True)
    except KeyboardInterrupt:
        return
