"""``waltap slot``: show or drop a pipeline's replication slot."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltap.base.text import size
from waltap.cli.profile_source import FileArgument, SetOption, at_rest, connected
from waltap.cli.terminal import confirm, echo

if TYPE_CHECKING:
    from waltap.ports.offsets.owned_objects import OwnedObject

__all__ = [
    "drop",
    "slot",
]


# ``waltap drop``: removes what a pipeline made, after showing it; what it delivered stays.


def drop(
    file: FileArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    set_: SetOption = None,
) -> None:
    """Remove a pipeline: the slot and publications that it made, and its stored state.

    Shows them first. The sink's output stays, and so does a slot that was taken over: `waltap slot
    drop` removes that. What the pipeline made in another database, where the profile led before, stays
    too, and is remembered. Refused while the pipeline runs.
    """
    from waltap.cli.profile_source import connected
    from waltap.pipeline.runtime.lock import PipelineLock
    from waltap.ports.offsets.state_folder import BELONGINGS, own_files

    profile, host = at_rest(file, set_)
    folder = profile.engine.state_dir / profile.name
    with PipelineLock(folder) as lock, connected(profile, host) as (connector, stages):
        offset = stages.store.load()
        known = connector.belongings(offset)
        elsewhere = connector.belongings_elsewhere()
        files = [path for path in own_files(folder) if not elsewhere or path.name != BELONGINGS]
        _show(known, elsewhere, files, folder)
        if not (offset or files or any(entry.made for entry in known)):
            echo(f"{profile.name}: there is nothing to remove")
            lock.leave_nothing()
            return
        confirm("Remove all of this? Changes that were not delivered yet are lost.", yes=yes)
        for entry in reversed(known):  # slots before publications: what the server refuses ends it
            if entry.made:
                connector.drop(entry)
        stages.store.clear()
        stages.belongings.forget(known)
        for path in files:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        lock.leave_nothing()
    echo(f"{profile.name}: removed; the sink keeps what was delivered")


def _show(
    known: "list[OwnedObject]", elsewhere: "list[OwnedObject]", files: list[Path], folder: Path
) -> None:
    from waltap.ports.offsets.state_folder import BELONGINGS, DEAD_LETTERS, LOCK

    reasons = {BELONGINGS: "which tells of them", DEAD_LETTERS: "which nothing else has"}
    for entry in known:
        if entry.made:
            echo(f"{entry.kind} {entry.name} in database {entry.database}")
        else:
            echo(f"(stays: {entry.kind} {entry.name}, which was there before)")
    for entry in elsewhere:
        echo(
            f"(stays: {entry.kind} {entry.name} in database {entry.database} of system {entry.system_id}, "
            "where the profile does not lead; `waltap drop` with a profile that does removes it)"
        )
    for path in files:
        echo(f"state {path}")
    for path in sorted(folder.iterdir()):
        if path not in files and path.name != LOCK:
            echo(f"(stays: {path}, {reasons.get(path.name, 'which the sink keeps')})")


slot = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show or drop a pipeline's replication slot."
)

Orphans = Annotated[
    bool,
    typer.Option("--orphans", help="Only slots that nobody reads and no stored offset belongs to."),
]


@slot.command()
def show(file: FileArgument, set_: SetOption = None) -> None:
    """Print where the slot stands. Exit code 1 when there is none."""
    from rich import box
    from rich.table import Table

    from waltap.changes.transactions.position import lsn_text
    from waltap.cli.terminal import answers

    with connected(*at_rest(file, set_)) as (connector, _):
        slot = connector.slot()
    if slot is None:
        echo("there is no slot", err=True)
        raise typer.Exit(1)
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_row("slot", slot.name)
    table.add_row("output plugin", slot.decoder)
    table.add_row("read by process", str(slot.reader or "none"))
    table.add_row("confirmed", lsn_text(slot.confirmed_lsn))
    table.add_row("restart", lsn_text(slot.restart_lsn))
    table.add_row("server", lsn_text(slot.server_lsn))
    table.add_row("lag", size(slot.lag_bytes))
    table.add_row("WAL kept", f"{size(slot.retained_bytes)} {slot.wal_status}")
    answers().print(table)


@slot.command("list")
def list_(
    file: FileArgument,
    orphans: Orphans = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    set_: SetOption = None,
) -> None:
    """List the slots of the profile's database, and whose they are.

    A slot belongs to a pipeline whose offset, in the profile's state folder, names it. One that nobody
    reads and that belongs to none keeps WAL for nobody: an orphan, as far as this folder tells. With
    --orphans the exit code is 1 when there are any.
    """
    import json

    from waltap.pipeline.setup.slot_owners import slot_owners

    profile, host = at_rest(file, set_)
    with connected(profile, host) as (connector, stages):
        slots = connector.slots()
        owners = slot_owners(profile, connector, stages.store)
        found = [
            {
                "slot": slot.name,
                "decoder": slot.decoder,
                "pipeline": owners.get(slot.name),
                "reader_pid": slot.reader,
                "lag_bytes": slot.lag_bytes,
                "retained_bytes": slot.retained_bytes,
                "wal_status": slot.wal_status,
            }
            for slot in slots
        ]
    if orphans:
        found = [each for each in found if not (each["pipeline"] or each["reader_pid"])]
    if as_json:
        echo(json.dumps(found, indent=2))
    else:
        _print_slots(found, orphans=orphans)
    if orphans and found:
        raise typer.Exit(1)


def _print_slots(found: list[dict[str, Any]], *, orphans: bool) -> None:
    from rich import box
    from rich.table import Table

    from waltap.cli.terminal import answers

    if not found:
        echo("there is no orphan" if orphans else "there is no slot")
        return
    table = Table("slot", "output plugin", "pipeline", "read by", "WAL kept", box=box.SIMPLE)
    for each in found:
        table.add_row(
            each["slot"],
            each["decoder"],
            each["pipeline"] or "none known here",
            str(each["reader_pid"] or "nobody"),
            f"{size(each['retained_bytes'])} {each['wal_status']}",
        )
    console = answers()
    console.print(table)
    if orphans:
        console.print(
            "Where nothing elsewhere needs them, this lets the server remove what they keep:"
        )
        for each in found:
            console.print(f"SELECT pg_drop_replication_slot('{each['slot']}');", markup=False)


@slot.command("drop")
def drop_slot(
    file: FileArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    set_: SetOption = None,
) -> None:
    """Drop the slot: changes not yet delivered are lost to this pipeline for good.

    Refused while the pipeline runs.
    """
    from waltap.pipeline.runtime.lock import PipelineLock

    profile, host = at_rest(file, set_)
    folder = profile.engine.state_dir / profile.name
    with PipelineLock(folder), connected(profile, host) as (connector, _):
        slot = connector.slot()
        if slot is None:
            echo("there is no slot", err=True)
            raise typer.Exit(1)
        question = f"Drop slot {slot.name} with {size(slot.lag_bytes)} of WAL not delivered?"
        confirm(question, yes=yes)
        connector.drop_slot()
    echo(f"dropped {slot.name}")
