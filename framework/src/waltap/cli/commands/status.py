"""``waltap status``: what a pipeline does, how far it has got, and what the server keeps for it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from waltap.base.text import size
from waltap.cli.profile_source import SetOption, at_rest, connected
from waltap.cli.terminal import answers, draw_until_interrupted, echo
from waltap.errors import WaltapError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from waltap.config.profile import Profile
    from waltap.plugins.host import Host
    from waltap.ports.offsets.offset import Offset
    from waltap.ports.source.connector import Connector, SlotStatus

__all__ = [
    "PipelineInfo",
    "members",
    "profiles",
    "report",
    "status",
    "top",
]


# The pipelines of a folder, and what each process that runs one says of it.

PROFILES = (".toml", ".properties", ".json")
SOURCE = re.compile(r"^\s*\[source\]|connector\.class|^\s*debezium\.source\.", re.MULTILINE)
"""What only a profile has: a folder may hold other files of these suffixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInfo:
    """One pipeline. ``origin`` is its profile, or its state folder; ``state_dir`` is None where the
    profile cannot be read, and ``problem`` says why."""

    name: str
    origin: Path
    state_dir: Path | None
    problem: str = ""


def members(folder: Path, host: "Host", set_: list[str] | None = None) -> list[PipelineInfo]:
    """Return the pipelines of a folder, by name: those of the profiles in it; where there are none, those
    that keep their state there."""
    from waltap.ports.offsets.state_folder import LOCK, OFFSET

    found = [_of_profile(path, host, set_) for path in sorted(profiles(folder))]
    if not found:
        found = [
            PipelineInfo(name=path.name, origin=path, state_dir=path)
            for path in sorted(folder.iterdir())
            if path.is_dir() and ((path / LOCK).exists() or (path / OFFSET).exists())
        ]
    return sorted(found, key=lambda each: each.name)


def report(member: PipelineInfo) -> dict[str, Any]:
    """Return what is known of a pipeline without asking its database: ``run`` is the status that the
    process which runs it gives, None where none does."""
    from waltap.services.control.protocol import PipelineNotRunning

    found: dict[str, Any] = {
        "pipeline": member.name,
        "origin": str(member.origin),
        "run": None,
        "stored_ms": None,
        "problem": member.problem,
    }
    if member.state_dir is None:
        return found
    try:
        found["run"] = run_of(member.state_dir)
    except PipelineNotRunning:
        found["stored_ms"] = _stored_ms(member.state_dir)
    except WaltapError as error:
        found["problem"] = error.problem
    return found


def run_of(state_dir: Path) -> dict[str, Any] | None:
    """Return the status of the pipeline whose state is in a folder. Raises: PipelineNotRunning,
    ControlSocketUnusable."""
    from waltap.services.control.client import ask
    from waltap.services.control.protocol import StatusRequest

    return ask(state_dir, StatusRequest()).status


def profiles(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are profiles."""
    for path in folder.iterdir():
        if path.suffix in PROFILES and path.is_file():
            try:
                text = path.read_text(errors="replace")
            except OSError:
                continue
            if SOURCE.search(text):
                yield path


def _of_profile(path: Path, host: "Host", set_: list[str] | None) -> PipelineInfo:
    from waltap.cli.profile_source import overrides, read
    from waltap.config.resolve import resolve

    try:
        raw = read(str(path))
        profile = resolve(raw, host, overrides=overrides(raw, set_), at_rest=True)
    except WaltapError as error:
        return PipelineInfo(name=path.stem, origin=path, state_dir=None, problem=error.problem)
    state = profile.engine.state_dir / profile.name
    return PipelineInfo(name=profile.name, origin=path, state_dir=state)


def _stored_ms(state_dir: Path) -> int | None:
    """Return when the last position was stored, None where there is none."""
    from waltap.ports.offsets.state_folder import OFFSET

    try:
        return (state_dir / OFFSET).stat().st_mtime_ns // 1_000_000
    except OSError:
        return None


# ``waltap top``: all pipelines of a folder, live.

Every = Annotated[
    float,
    typer.Option("--every", metavar="S", min=0.2, max=3600, help="Seconds between two looks."),
]


def top(
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
    from waltap.cli.views import overview
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


WATCH_S = 2.0


Place = Annotated[
    str,
    typer.Argument(metavar="FILE|FOLDER", help="Profile, or a folder of profiles or of states."),
]


def status(
    place: Place,
    set_: SetOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Draw it again and again, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a pipeline does, as the process that runs it says; and stored offset, slot and lag.

    The process is asked by its control socket, on this machine and as the user that runs it. Of a folder
    every pipeline gets a line, and no database is asked, as with --watch. Exit code 1 when a pipeline does
    not run and streaming cannot go on.
    """
    if Path(place).is_dir():
        _show_folder(Path(place), set_, watch=watch, as_json=as_json)
        return
    profile, host = at_rest(place, set_)
    state_dir = profile.engine.state_dir / profile.name
    member = PipelineInfo(name=profile.name, origin=Path(place), state_dir=state_dir)
    if watch:
        draw_until_interrupted(lambda: _view(report(member)), WATCH_S)
        return
    known = report(member)
    run = known["run"]
    try:
        document = {**_look(profile, host), "run": run}
    except WaltapError as error:
        if run is None:
            raise
        document = {"pipeline": profile.name, "run": run, "resumable": True, "source": str(error)}
    if as_json:
        echo(json.dumps(document, indent=2))
    else:
        _print(document, known)
    if run is None and not document["resumable"]:
        raise typer.Exit(1)


def _show_folder(folder: Path, set_: list[str] | None, *, watch: bool, as_json: bool) -> None:
    from waltap.cli.views import overview
    from waltap.plugins.host import Host

    found = members(folder, Host(), set_)
    if watch:
        draw_until_interrupted(lambda: overview([report(each) for each in found]), WATCH_S)
    elif as_json:
        echo(json.dumps([report(each) for each in found], indent=2))
    elif not found:
        echo(f"there is no pipeline in {folder.resolve()}", err=True)
        raise typer.Exit(1)
    else:
        answers().print(overview([report(each) for each in found]))


def _view(known: dict[str, Any]) -> "RenderableType":
    from waltap.cli.views import overview, run_view

    return overview([known]) if known["run"] is None else run_view(known["run"])


def _look(profile: "Profile", host: "Host") -> dict[str, Any]:
    """Return what the database and the stored offset tell. Raises: WaltapError."""
    from waltap.pipeline.setup.offline_status import asked_of_the_stored_offset
    from waltap.pipeline.setup.slot_owners import orphan_slots

    with connected(profile, host) as (connector, parts):
        offset, lost = asked_of_the_stored_offset(
            parts.store, partial(_lost, connector), lambda found: found[1] is not None
        )
        slot = connector.slot()
        new = [] if offset is None else parts.new_tables.unknown(connector, offset)
        orphans = [each.name for each in orphan_slots(profile, connector, parts.store)]
    found = _document(profile.name, offset, slot, lost)
    return {**found, "new_tables": new, "orphans": orphans}


def _lost(
    connector: "Connector", offset: "Offset | None"
) -> "tuple[Offset | None, WaltapError | None]":
    """Return the offset, and why streaming cannot go on from it."""
    return offset, _refused(connector) if offset is None else connector.lost(offset)


def _refused(connector: "Connector") -> "WaltapError | None":
    """Return what keeps a first run from its start, such as a slot that is not ours."""
    return next((c.error for c in connector.check(None) if c.name == "start" and c.error), None)


def _document(
    name: str,
    offset: "Offset | None",
    slot: "SlotStatus | None",
    lost: "WaltapError | None",
) -> dict[str, Any]:
    from waltap.changes.transactions.position import lsn_text

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


def _print(document: dict[str, Any], known: dict[str, Any]) -> None:
    from waltap.cli.views import run_view

    console = answers()
    if document["run"] is not None:
        console.print(run_view(document["run"]))
        if "source" in document:
            console.print("[yellow]The database cannot be asked from here:[/]")
            console.print(document["source"], markup=False)
    else:
        if known["problem"]:
            console.print(f"[yellow]It runs, and does not answer:[/] {known['problem']}")
        console.print(_at_rest(document))
    if document.get("new_tables"):
        console.print(
            "New tables, and those that the server was made to stream no more or not all of, join at the "
            "next start; waltap.new.tables says what becomes of their rows from before."
        )
    if not document["resumable"]:
        started = document["offset"] is not None
        what = "Streaming cannot go on from the stored offset" if started else "A run cannot start"
        console.print(f"[red]{what}.[/]")
        console.print(document["lost"], markup=False)


def _at_rest(document: dict[str, Any]) -> "RenderableType":
    from rich import box
    from rich.table import Table

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
        table.add_row("lag", size(slot["lag_bytes"]))
        table.add_row("WAL kept", f"{size(slot['retained_bytes'])} {slot['wal_status']}")
    if document["new_tables"]:
        table.add_row("new tables", ", ".join(document["new_tables"]))
    if document["orphans"]:
        orphans = ", ".join(document["orphans"])
        table.add_row(
            "orphans",
            f"[yellow]{orphans}[/]: slots that nobody reads; waltap slot list FILE --orphans",
        )
    return table
