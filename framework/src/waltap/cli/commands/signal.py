"""``waltap signal``: gives a signal to a running pipeline, through its control socket."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.base.text import printable
from waltap.cli.profile_source import FileArgument, SetOption, any_sink, at_rest, overrides, read
from waltap.cli.terminal import echo

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.services.control.protocol import ControlAnswer

__all__ = [
    "ask_for",
    "signal",
    "snapshot",
]

WAIT_S = 10.0


# Signals that commands give to a running pipeline, and what they say of the answer.


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


# ``waltap snapshot``: has a running pipeline read tables, as the signal execute-snapshot does.


def snapshot(
    file: FileArgument,
    tables: Annotated[
        list[str],
        typer.Argument(metavar="TABLE…", help="schema.table, or a pattern of such names."),
    ],
    blocking: Annotated[
        bool, typer.Option("--blocking", help="Read them whole, while the stream waits.")
    ] = False,
    condition: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="SQL",
            help="Which rows: a condition such as 'id > 100'; with --blocking a SELECT.",
        ),
    ] = "",
    key: Annotated[
        str, typer.Option("--key", metavar="COLUMN", help="Read in the order of this column.")
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
) -> None:
    """Read tables again while the pipeline runs, on this machine and as the user that runs it.

    The log of the run says which tables are read, and when each is read to its end.
    """
    profile, _ = at_rest(file, set_)
    data: dict[str, object] = {
        "type": "blocking" if blocking else "incremental",
        "data-collections": tables,
    }
    if condition:
        data["additional-conditions"] = [
            {"data-collection": table, "filter": condition} for table in tables
        ]
    if key:
        data["surrogate-key"] = key
    ask_for(profile, "execute-snapshot", data, identifier=identifier, wait_s=wait)


def signal(
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
