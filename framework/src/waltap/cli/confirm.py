"""Questions of commands to whoever sits at the terminal, and what becomes of them where nobody does."""

import sys

import typer

from waltap.cli.live_console import echo
from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem

__all__ = ["answered", "confirm"]


def answered(option: str, question: str, *, default: str) -> str:
    """Return the answer to a question. Raises: ConfigurationError where nobody is there to answer."""
    try:
        return str(typer.prompt(question, default=default))
    except typer.Abort:
        if sys.stdin.isatty():
            raise
    problem = PropertyProblem(
        option, "is not given, and standard input has no answer", allowed=f"such as {default}"
    )
    raise ConfigurationError([problem], origin=COMMAND_LINE)


def confirm(question: str, *, yes: bool) -> None:
    """Ask whether to go on, unless ``yes``. Raises: typer.Abort or typer.Exit when not."""
    if yes:
        return
    try:
        agreed = typer.confirm(question)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        echo("\nStandard input has no answer: nothing was done. --yes goes on unasked.", err=True)
        raise typer.Exit(1) from None
    if not agreed:
        raise typer.Abort
