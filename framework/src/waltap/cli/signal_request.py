"""Signals that commands give to a running pipeline, and what they say of the answer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from waltap.base.text import printable
from waltap.cli.live_console import echo

if TYPE_CHECKING:
    from waltap.config.profile import Profile

__all__ = ["ask_for"]


def ask_for(
    profile: "Profile",
    kind: str,
    data: Mapping[str, object],
    *,
    identifier: str = "",
    wait_s: float = 10.0,
) -> None:
    """Give a signal and say what became of it. Raises: PipelineNotRunning, ControlSocketUnusable;
    typer.Exit with 1 where it was left out."""
    from waltap.services.control.client import ask
    from waltap.services.control.protocol import SignalRequest

    request = SignalRequest(
        kind=kind, identifier=identifier, data=dict(data), wait_ms=round(wait_s * 1000)
    )
    answer = ask(profile.engine.state_dir / profile.name, request)
    signal = f"{profile.name}: signal {answer.identifier} ({kind})"
    if answer.taken is False or not answer.ok:
        echo(f"{signal} was left out: {printable(answer.reason)}", err=True)
        raise typer.Exit(1)
    if answer.taken is None:
        echo(f"{signal} waits: the pipeline is in state {answer.state}")
    else:
        echo(f"{signal} is acted on")
