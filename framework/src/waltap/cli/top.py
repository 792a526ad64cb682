"""``waltap top``: all pipelines of a folder, live."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from waltap.cli.live_console import echo

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["command"]

Every = Annotated[
    float,
    typer.Option("--every", metavar="S", min=0.2, max=3600, help="Seconds between two looks."),
]


def command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]",
            help="Folder of profiles, or of states.",
            exists=True,
            file_okay=False,
        ),
    ] = Path(),
    sort: Annotated[
        Literal["name", "lag", "rate", "state"], typer.Option("--sort", help="The order of lines.")
    ] = "name",
    every: Every = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one look as JSON.")] = False,
) -> None:
    """Show what every pipeline of a folder does, by asking the processes that run them; Ctrl-C ends it.

    Databases are not asked. Pipelines that nobody runs on this machine are listed as such.
    """
    from waltap.cli.live_console import answers
    from waltap.cli.live_view import draw_until_interrupted
    from waltap.cli.pipeline_discovery import members, report
    from waltap.cli.status_view import overview
    from waltap.plugins.host import Host

    found = members(folder, Host())

    def view() -> "RenderableType":
        return overview([report(member) for member in found], sort)

    if as_json:
        echo(json.dumps([report(member) for member in found], indent=2))
    elif not found:
        echo(f"there is no pipeline in {folder.resolve()}", err=True)
        raise typer.Exit(1)
    elif once:
        answers().print(view())
    else:
        draw_until_interrupted(view, every)
