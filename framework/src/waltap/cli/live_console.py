"""Where commands print: standard output for answers, standard error for everything else."""

import sys
from typing import TYPE_CHECKING

import typer

from waltap.base.environment import dumb_terminal, forced_terminal
from waltap.base.text import printable_lines

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["answers", "echo", "notices", "notices_are_piped"]

PIPE_WIDTH = 160
"""Columns where the other end is no terminal and says nothing of its width."""


def answers() -> "Console":
    """Return the console of standard output."""
    return _console(stderr=False)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines without colours: what others wrote in them drives no terminal."""
    typer.echo(printable_lines(text), err=err)


def notices() -> "Console":
    """Return the console of standard error."""
    return _console(stderr=True)


def notices_are_piped() -> bool:
    """Tell whether standard error is no terminal, nor to be taken for one: lines go there as they are,
    and what draws on terminals need not be loaded."""
    return not sys.stderr.isatty() and not forced_terminal()


def _console(*, stderr: bool) -> "Console":
    from waltap.cli.console import SafeConsole

    console = SafeConsole(stderr=stderr, highlight=False)
    if console.is_terminal and dumb_terminal():
        # no bars, panels or colours: it is written to as a pipe is
        width = console.width
        return SafeConsole(stderr=stderr, width=width, highlight=False, force_terminal=False)
    return (
        console
        if console.is_terminal
        else SafeConsole(stderr=stderr, width=PIPE_WIDTH, highlight=False)
    )
