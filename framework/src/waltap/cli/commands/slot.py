"""Show and drop slots, and remove pipelines (``waltap slot``, ``waltap drop``)."""

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from waltap.base.text import size
from waltap.changes.transactions.position import lsn_text
from waltap.cli.commands.status import slot_document
from waltap.cli.profile_source import FileArgument, Json, SetOption, Yes, at_rest, connected
from waltap.cli.terminal import answers, command_group, confirm, echo
from waltap.pipeline.runtime.lock import PipelineLock
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap.ports.offsets.state_folder import DEAD_LETTERS, GAPS, LOCK, OWNED_OBJECTS, own_files
from waltap.ports.source.connector import SourceLacks
from waltap.ports.source.roles import SlotOwningSource
from waltap.services.monitor.views import facts, table, wal_status


def drop(file: FileArgument, yes: Yes = False, set_: SetOption = None) -> None:
    """Remove a pipeline: the slot and publications that it made, and its stored state.

    Shows them first. The sink's output stays, and so does a slot that was taken over: `waltap slot
    drop` removes that. What the pipeline made in a database that the profile named before stays
    too, and is remembered. Refused while the pipeline runs.
    """
    profile, host = at_rest(file, set_)
    folder = profile.state_dir
    with PipelineLock(folder) as lock, connected(profile, host) as (connector, stages):
        offset = stages.store.load()
        owner = connector if isinstance(connector, SlotOwningSource) else None
        known = [] if owner is None else owner.owned_objects(offset)
        of_others = [] if owner is None else owner.foreign_owned_objects()
        files = [path for path in own_files(folder) if not of_others or path.name != OWNED_OBJECTS]
        _show(known, of_others, files, folder)
        if not (offset or files or any(entry.made for entry in known)):
            echo(f"{profile.name}: there is nothing to remove")
            lock.leave_nothing()
            return
        confirm("Remove all of this? Changes that were not delivered yet are lost.", yes=yes)
        # Slots come before publications: the first refusal of the server ends the command.
        for entry in reversed(known):
            if owner is not None and entry.made:
                owner.drop(entry)
        stages.store.clear()
        stages.owned_objects.forget(known)
        for path in files:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        lock.leave_nothing()
    echo(f"{profile.name}: removed; the sink keeps what was delivered")


def _show(
    known: list[OwnedObject], of_others: list[OwnedObject], files: list[Path], folder: Path
) -> None:
    reasons = {
        OWNED_OBJECTS: "which names them",
        DEAD_LETTERS: "which nothing else has",
        GAPS: "which describes lost changes",
    }
    for entry in known:
        if entry.made:
            echo(f"{entry.kind} {entry.name} in database {entry.database}")
        else:
            echo(f"(stays: {entry.kind} {entry.name}, which was there before)")
    for entry in of_others:
        echo(
            f"(stays: {entry.kind} {entry.name} in database {entry.database} of system {entry.system_id}, "
            "where the profile does not lead; `waltap drop` with a profile that does removes it)"
        )
    for path in files:
        echo(f"state {path}")
    for path in sorted(folder.iterdir()):
        if path not in files and path.name != LOCK:
            echo(f"(stays: {path}, {reasons.get(path.name, 'which the sink keeps')})")


slot = command_group("Show a pipeline's replication slot, list all slots, or drop one.")

Orphans = Annotated[
    bool,
    typer.Option("--orphans", help="Only slots without a reader and without a stored offset."),
]


@slot.command()
def show(file: FileArgument, as_json: Json = False, set_: SetOption = None) -> None:
    """Print the slot's positions. Exit code 1: there is no slot."""
    profile, host = at_rest(file, set_)
    with connected(profile, host) as (connector, _):
        found = connector.slot()
    if found is None:
        echo(f"{profile.name} has no slot: `waltap run` makes it at its start", err=True)
        raise typer.Exit(1)
    if as_json:
        echo(json.dumps(slot_document(found) | {"restart": lsn_text(found.restart_lsn)}, indent=2))
        return
    rows = [
        ("slot", found.name),
        ("output plugin", found.decoder),
        ("read by process", str(found.reader or "none")),
        ("confirmed", lsn_text(found.confirmed_lsn)),
        ("kept from", lsn_text(found.restart_lsn)),
        ("server", lsn_text(found.server_lsn)),
        ("lag", size(found.lag_bytes)),
        ("WAL kept", f"{size(found.retained_bytes)}{wal_status(found.wal_status)}"),
    ]
    answers().print(facts(rows))


@slot.command("list")
def list_slots(
    file: FileArgument, orphans: Orphans = False, as_json: Json = False, set_: SetOption = None
) -> None:
    """List the slots of the profile's database, and whose they are.

    A slot belongs to a pipeline whose offset in the profile's state folder names it. An orphan has
    no reader, and no pipeline here. It may be another tool's or machine's: ask before you drop it.
    With --orphans exit code 1: there are some.
    """
    from waltap.pipeline.engine.preflight import slot_owners

    profile, host = at_rest(file, set_)
    with connected(profile, host) as (connector, stages):
        slots = connector.slots() if isinstance(connector, SlotOwningSource) else []
        owners = slot_owners(profile, connector, stages.store)
    if orphans:
        slots = [each for each in slots if not (owners.get(each.name) or each.reader)]
    if as_json:
        document = [
            {
                "slot": each.name,
                "decoder": each.decoder,
                "pipeline": owners.get(each.name),
                "reader_pid": each.reader,
                "lag_bytes": each.lag_bytes,
                "retained_bytes": each.retained_bytes,
                "wal_status": each.wal_status,
            }
            for each in slots
        ]
        echo(json.dumps(document, indent=2))
    elif not slots:
        echo("no slot is an orphan" if orphans else "the database has no slot")
    else:
        rows = [
            (
                each.name,
                each.decoder,
                owners.get(each.name) or "none known here",
                str(each.reader or "no process"),
                f"{size(each.retained_bytes)}{wal_status(each.wal_status)}",
            )
            for each in slots
        ]
        console = answers()
        console.print(table(("slot", "output plugin", "pipeline", "read by", "WAL kept"), rows))
        if orphans:
            console.print(
                "Where nothing elsewhere needs them, this lets the server remove what they keep:"
            )
            for each in slots:
                console.print(f"SELECT pg_drop_replication_slot('{each.name}');", markup=False)
    if orphans and slots:
        raise typer.Exit(1)


@slot.command("drop")
def drop_slot(file: FileArgument, yes: Yes = False, set_: SetOption = None) -> None:
    """Drop the slot: this pipeline permanently loses undelivered changes.

    Refused while the pipeline runs.
    """
    profile, host = at_rest(file, set_)
    with PipelineLock(profile.state_dir), connected(profile, host) as (connector, _):
        found = connector.slot()
        if found is None:
            echo(f"{profile.name} has no slot: `waltap run` makes it at its start", err=True)
            raise typer.Exit(1)
        if not isinstance(connector, SlotOwningSource):
            raise SourceLacks("this source drops no slots")
        question = f"Drop slot {found.name} with {size(found.lag_bytes)} of WAL not delivered?"
        confirm(question, yes=yes)
        connector.drop_slot()
    echo(f"dropped {found.name}")
