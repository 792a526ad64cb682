"""``waltap status``: how far a pipeline has got, and what the server keeps for it."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltap.cli.profile_source import FileArgument, SetOption, at_rest

if TYPE_CHECKING:
    from waltap.errors import WaltapError
    from waltap.offsets.offset import Offset
    from waltap.source.connector import Connector, SlotStatus

__all__ = ["command"]


def command(
    file: FileArgument,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show stored offset, replication slot and lag. Exit code 1 when streaming cannot go on."""
    from waltap.cli.connection import connected

    with connected(*at_rest(file, set_)) as (connector, parts):
        offset, slot = parts.store.load(), connector.slot()
        lost = _refused(connector) if offset is None else connector.lost(offset)
        new = [] if offset is None else parts.new_tables.unknown(connector, offset)
    document = {**_document(parts.profile.name, offset, slot, lost), "new_tables": new}
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _print(document)
    if not document["resumable"]:
        raise typer.Exit(1)


def _refused(connector: "Connector") -> "WaltapError | None":
    """Return what keeps a first run from its start, such as a slot that is not ours."""
    return next((c.error for c in connector.check(None) if c.name == "start" and c.error), None)


def _document(
    name: str,
    offset: "Offset | None",
    slot: "SlotStatus | None",
    lost: "WaltapError | None",
) -> dict[str, Any]:
    from waltap.source.position import lsn_text

    document: dict[str, Any] = {
        "pipeline": name,
        "resumable": lost is None,
        "lost": None if lost is None else str(lost),
        "offset": None,
        "slot": None,
    }
    if offset is not None:
        document["offset"] = {
            "position": str(offset.positions),
            "slot": ", ".join(each.slot for each in offset.partitions.values()),
            "database": offset.first.database,
            "timeline": offset.first.timeline,
            "snapshot": "incomplete" if offset.snapshot is not None else "complete",
        }
    if slot is not None:
        document["slot"] = {
            "name": slot.name,
            "decoder": slot.decoder,
            "reader_pid": slot.reader,
            "confirmed": lsn_text(slot.confirmed_lsn),
            "server": lsn_text(slot.server_lsn),
            "lag_bytes": slot.lag_bytes,
            "retained_bytes": slot.retained_bytes,
            "wal_status": slot.wal_status,
        }
    return document


def _print(document: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    from waltap.cli.screen import answers

    console = answers()
    offset, slot = document["offset"], document["slot"]
    table = Table(title=document["pipeline"], box=box.SIMPLE, show_header=False)
    if offset is None:
        begins = ": the next run begins as snapshot.mode says" if document["resumable"] else ""
        table.add_row("offset", f"none stored{begins}")
    else:
        table.add_row("offset", f"{offset['position']}, snapshot {offset['snapshot']}")
    if slot is None:
        table.add_row("slot", "none")
    else:
        reader = (
            f"read by process {slot['reader_pid']}" if slot["reader_pid"] else "nobody reads it"
        )
        table.add_row("slot", f"{slot['name']} ({slot['decoder']}), {reader}")
        table.add_row("confirmed", f"{slot['confirmed']} of {slot['server']}")
        table.add_row("lag", _size(slot["lag_bytes"]))
        table.add_row("WAL kept", f"{_size(slot['retained_bytes'])} {slot['wal_status']}")
    if document["new_tables"]:
        table.add_row("new tables", ", ".join(document["new_tables"]))
    console.print(table)
    if document["new_tables"]:
        console.print(
            "New tables, and those that the server was made to stream no more or not all of, join at the "
            "next start; waltap.new.tables says what becomes of their rows from before."
        )
    if not document["resumable"]:
        what = (
            "A run cannot start"
            if offset is None
            else "Streaming cannot go on from the stored offset"
        )
        console.print(f"[red]{what}.[/]")
        console.print(document["lost"], markup=False)


def _size(size: int) -> str:
    """Return a number of bytes for people."""
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.0f} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"
