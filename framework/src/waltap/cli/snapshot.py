"""``waltap snapshot``: has a running pipeline read tables, as the signal execute-snapshot does."""

from typing import Annotated

import typer

from waltap.cli.profile_source import FileArgument, SetOption, at_rest

__all__ = ["command"]

WAIT_S = 10.0


def command(
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
    from waltap.cli.signal_request import ask_for

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
