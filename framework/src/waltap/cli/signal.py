"""``waltap signal``: gives a signal to a running pipeline, through its control socket."""

from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.live_console import echo
from waltap.cli.profile_source import FileArgument, SetOption, any_sink, overrides, read

if TYPE_CHECKING:
    from waltap.services.control.protocol import ControlAnswer

__all__ = ["command"]

WAIT_S = 10.0


def command(
    file: FileArgument,
    kind: Annotated[
        str, typer.Argument(metavar="TYPE", help="execute-snapshot, stop-snapshot, log, …")
    ],
    data: Annotated[
        str, typer.Argument(metavar="[DATA]", help="A JSON object; - reads it from standard input.")
    ] = "",
    identifier: Annotated[
        str, typer.Option("--id", metavar="ID", help="The signal's id; by default one is made.")
    ] = "",
    wait: Annotated[
        float,
        typer.Option(
            min=0, max=3600, metavar="SECONDS", help="How long to wait until it is acted on."
        ),
    ] = WAIT_S,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Give a signal to the pipeline while it runs, on this machine and as the user that runs it.

    Exit code 1 when the signal was left out; the reason is printed. One that was given and not acted on in
    time (the initial snapshot is being read, say) is not lost as long as the run lasts.
    """
    from waltap.config.resolve import resolve
    from waltap.plugins.host import Host
    from waltap.services.control.client import ask
    from waltap.services.control.protocol import SignalRequest

    host, raw = Host(), read(file)
    profile = resolve(raw, host, sink=any_sink(raw), overrides=overrides(raw, set_))
    text = typer.get_text_stream("stdin").read() if data == "-" else data
    request = SignalRequest(kind=kind, identifier=identifier, data=text, wait_ms=round(wait * 1000))
    answer = ask(profile.engine.state_dir / profile.name, request)
    if as_json:
        import msgspec

        echo(msgspec.json.encode(answer).decode())
    else:
        echo(_line(profile.name, kind, answer), err=answer.taken is False or not answer.ok)
    if answer.taken is False or not answer.ok:
        raise typer.Exit(1)


def _line(name: str, kind: str, answer: "ControlAnswer") -> str:
    signal = f"{name}: signal {answer.identifier} ({kind})"
    if answer.taken:
        return f"{signal} is acted on"
    if answer.taken is None and answer.ok:
        return f"{signal} waits: the pipeline is in state {answer.state}"
    return f"{signal} was left out: {answer.reason}"
