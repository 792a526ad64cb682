"""What this distribution contributes to waltap."""

from collections.abc import Iterable
from typing import Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import CommandSpec

WALTAP_API = 1


def _command() -> Any:
    from waltap_count.command import command  # loads when it is called, not at `waltap --help`

    return command


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """Contribute the command: ``waltap count``."""
    yield CommandSpec(
        name="count", summary="Count what the installed plugins provide.", factory=_command
    )
