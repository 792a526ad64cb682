"""Send signals to a running pipeline (``signal``, ``snapshot``)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.profile_source import FileArgument, Json, SetOption, at_rest, resolved
from waltap.cli.terminal import echo

if TYPE_CHECKING:
    from waltap.config.profile import Profile


WAIT_S = 10.0
Identifier = Annotated[
    str, typer.Option("--id", metavar="ID", help="The signal's id; by default one is made.")
]
Wait = Annotated[
    float,
    typer.Option(min=0, max=3600, metavar="SECONDS", help="How long to wait until it is acted on."),
]


def ask_for(
    profile: "Profile",
    kind: str,
    data: Mapping[str, object] | str,
    *,
    identifier: str = "",
    wait_s: float = WAIT_S,
    as_json: bool = False,
) -> None:
    """Give a signal and print its fate.

    Raises: PipelineNotRunning, ControlSocketUnusable; typer.Exit with 1 for a signal that was left out.
    """
    from waltap.services.control import SignalRequest, ask

    request = SignalRequest(
        kind=kind,
        identifier=identifier,
        data=data if isinstance(data, str) else dict(data),
        wait_ms=round(wait_s * 1000),
    )
    answer = ask(profile.engine.state_dir / profile.name, request)
    left_out = answer.taken is False or not answer.ok
    if as_json:
        import msgspec

        echo(msgspec.json.encode(answer).decode())
    else:
        if left_out:
            fate = f"was left out: {answer.reason}"
        elif answer.taken is None:
            fate = f"waits: the pipeline is in state {answer.state}"
        else:
            fate = "is acted on"
        echo(f"{profile.name}: signal {answer.identifier} ({kind}) {fate}", err=left_out)
    if left_out:
        raise typer.Exit(1)


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
    identifier: Identifier = "",
    wait: Wait = WAIT_S,
    set_: SetOption = None,
) -> None:
    """Read tables again while the pipeline runs, on its machine and as its user.

    The change log and Spark's tables replace the rows of a table that --blocking reads completely,
    if it has a key; otherwise rows that are gone in the source stay. The log of the run shows which
    tables are read, and when each is finished.
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
    identifier: Identifier = "",
    wait: Wait = WAIT_S,
    set_: SetOption = None,
    as_json: Json = False,
) -> None:
    """Send a signal to the running pipeline, on its machine and as its user.

    Exit code 1: the signal was rejected; the reason is printed. A signal that waits, such as for
    the end of the initial snapshot, is kept until the run ends.
    """
    profile, _, _ = resolved(file, set_)
    text = typer.get_text_stream("stdin").read() if data == "-" else data
    ask_for(profile, kind, text, identifier=identifier, wait_s=wait, as_json=as_json)
