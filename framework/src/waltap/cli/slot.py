"""``waltap slot``: show or drop a pipeline's replication slot."""

from typing import Annotated

import typer

from waltap.cli.connection import connected
from waltap.cli.profile_source import FileArgument, SetOption, at_rest
from waltap.cli.question import confirm

__all__ = ["command"]

command = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show or drop a pipeline's replication slot."
)


@command.command()
def show(file: FileArgument, set_: SetOption = None) -> None:
    """Print where the slot stands. Exit code 1 when there is none."""
    from rich import box
    from rich.table import Table

    from waltap.cli.screen import answers
    from waltap.source.position import lsn_text

    with connected(*at_rest(file, set_)) as (connector, _):
        slot = connector.slot()
    if slot is None:
        typer.echo("there is no slot", err=True)
        raise typer.Exit(1)
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_row("slot", slot.name)
    table.add_row("output plugin", slot.decoder)
    table.add_row("read by process", str(slot.reader or "none"))
    table.add_row("confirmed", lsn_text(slot.confirmed_lsn))
    table.add_row("restart", lsn_text(slot.restart_lsn))
    table.add_row("server", lsn_text(slot.server_lsn))
    table.add_row("lag", f"{slot.lag_bytes} bytes")
    table.add_row("WAL kept", f"{slot.retained_bytes} bytes {slot.wal_status}")
    answers().print(table)


@command.command()
def drop(
    file: FileArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    set_: SetOption = None,
) -> None:
    """Drop the slot: changes not yet delivered are lost to this pipeline for good.

    Refused while the pipeline runs.
    """
    from waltap.pipeline.lock import PipelineLock

    profile, host = at_rest(file, set_)
    folder = profile.engine.state_dir / profile.name
    with PipelineLock(folder), connected(profile, host) as (connector, _):
        slot = connector.slot()
        if slot is None:
            typer.echo("there is no slot", err=True)
            raise typer.Exit(1)
        question = f"Drop slot {slot.name} with {slot.lag_bytes} bytes of WAL not delivered?"
        confirm(question, yes=yes)
        connector.drop_slot()
    typer.echo(f"dropped {slot.name}")
