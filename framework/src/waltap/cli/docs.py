"""``waltap docs``: writes or checks the reference pages, and prints the profile's JSON Schema."""

import json
from pathlib import Path
from typing import Annotated

import typer

from waltap.cli.live_console import echo
from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem

__all__ = ["command"]

command = typer.Typer(add_completion=False, help="Write the reference pages, or check them.")


@command.callback(invoke_without_command=True)
def write(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="The folder `docs`.")
    ] = Path("docs"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 when a page is stale.")
    ] = False,
) -> None:
    """Write the pages of reference/ from what the installed plugins declare."""
    if context.invoked_subcommand is not None:
        return
    from waltap.cli.reference import pages
    from waltap.plugins.host import Host

    stale = []
    for page in pages(Host()):
        path, text = folder / page.path, page.text()
        try:
            if path.exists() and path.read_bytes() == text.encode():
                continue
            stale.append(path)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode())
        except (OSError, ValueError) as cause:
            why = (
                cause.strerror if isinstance(cause, OSError) else "this is not the name of a folder"
            )
            problem = PropertyProblem("--folder", f"cannot be used: {why}", value=str(folder))
            raise ConfigurationError([problem], origin=COMMAND_LINE) from cause
    for path in stale:
        echo(f"stale: {path}" if check else f"wrote {path}")
    if check and stale:
        echo("run `waltap docs` and commit the pages", err=True)
        raise typer.Exit(1)


@command.command()
def schema() -> None:
    """Print the JSON Schema of a waltap profile, for editors."""
    from waltap.cli.reference.json_schema import profile_schema
    from waltap.plugins.host import Host

    echo(json.dumps(profile_schema(Host()), indent=2, ensure_ascii=False))
