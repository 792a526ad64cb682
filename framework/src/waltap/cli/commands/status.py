"""Show the state of pipelines (``waltap status``, ``waltap top``)."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import RenderableType

from waltap.base.placeholder import contents
from waltap.changes.transactions.position import lsn_text
from waltap.cli.profile_source import Json, SetOption, at_rest, connected, overrides, read
from waltap.cli.terminal import answers, draw_until_interrupted, echo
from waltap.config.layers import READERS
from waltap.config.profile import Profile
from waltap.config.resolve import resolve
from waltap.errors import WaltapError, usage_error
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import Offset
from waltap.ports.offsets.state_folder import LOCK, OFFSET
from waltap.ports.source.connector import Connector
from waltap.ports.source.slot_status import SlotStatus
from waltap.services.control import PipelineNotRunning, StatusRequest, ask
from waltap.services.monitor.views import at_rest_view, overview, run_view

WATCH_S = 2.0
SOURCE = re.compile(
    r"""^\s*\[\s*["']?source["']?\s*\]|^\s*source\s*\.\s*type\b"""
    r"|connector\.class|^\s*(%prod\.)?debezium\.source\."
    r"""|\bkind["']?\s*:\s*["']?KafkaConnector\b""",
    re.MULTILINE,
)
"""Text that only profiles have: a folder may contain other files of these suffixes."""

ProfileOrFolder = Annotated[
    str,
    typer.Argument(
        metavar="FILE|FOLDER", help="Profile, or a folder of profiles or state folders."
    ),
]
Every = Annotated[
    float,
    typer.Option("--every", metavar="S", min=0.2, max=3600, help="Seconds between two looks."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInfo:
    """One pipeline of a folder."""

    name: str
    # Its profile or its state folder.
    origin: Path
    # None for a profile that cannot be read; ``problem`` has the reason.
    state_dir: Path | None
    problem: str = ""


def members(folder: Path, host: Host, set_: list[str] | None = None) -> list[PipelineInfo]:
    """Return the pipelines of a folder's profiles by name.

    Without profiles it returns the pipelines whose state is in the folder.
    """
    found = [_of_profile(path, host, set_) for path in sorted(profiles(folder))]
    if not found:
        found = [
            PipelineInfo(name=path.name, origin=path, state_dir=path)
            for path in sorted(folder.iterdir())
            if path.is_dir() and ((path / LOCK).exists() or (path / OFFSET).exists())
        ]
    # Profiles with one name have one state folder: they are one pipeline.
    states = {each.state_dir or each.origin: each for each in reversed(found)}
    return sorted(states.values(), key=lambda each: each.name)


def profiles(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are profiles."""
    for path in folder.iterdir():
        if path.suffix.lower() in READERS and path.is_file():
            try:
                text = contents(path).decode(errors="replace")
            except OSError:
                continue
            if SOURCE.search(text):
                yield path


def _of_profile(path: Path, host: Host, set_: list[str] | None) -> PipelineInfo:
    try:
        raw = read(str(path))
        profile = resolve(raw, host, overrides=overrides(raw, set_), at_rest=True)
    except WaltapError as error:
        return PipelineInfo(name=path.stem, origin=path, state_dir=None, problem=error.problem)
    return PipelineInfo(name=profile.name, origin=path, state_dir=profile.state_dir)


def report(member: PipelineInfo) -> dict[str, Any]:
    """Return the state of a pipeline without a query of its database.

    ``run`` is the status from the process that runs it, None without one.
    """
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
        found["run"] = ask(member.state_dir, StatusRequest()).status
    except PipelineNotRunning:
        offset = member.state_dir / OFFSET
        if offset.exists():
            found["stored_ms"] = offset.stat().st_mtime_ns // 1_000_000
    except WaltapError as error:
        found["problem"] = error.problem
    return found


def top(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]",
            help="Folder of profiles or state folders.",
            exists=True,
            file_okay=False,
        ),
    ] = Path(),
    sort: Annotated[
        Literal["name", "lag", "rate", "state"],
        typer.Option("--sort", metavar="BY", help="Order of lines: name, lag, rate or state."),
    ] = "name",
    every: Every = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the state of every pipeline of a folder, live; Ctrl-C ends it.

    It queries no database. Pipelines that do not run on this machine are marked.
    """
    _show_pipelines(
        folder, members(folder, Host()), as_json=as_json, sort=sort, every=None if once else every
    )


def status(
    location: ProfileOrFolder,
    set_: SetOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Draw it again and again, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a pipeline's process, stored offset, slot and lag.

    It uses the process's control socket, on the same machine and as the same user. A folder shows
    one line per pipeline and queries no database, nor does --watch. Exit code 1: a pipeline does
    not run and its stream cannot continue.
    """
    folder, every = Path(location), WATCH_S if watch else None
    if folder.is_dir():
        _show_pipelines(folder, members(folder, Host(), set_), as_json=as_json, every=every)
        return
    profile, host = at_rest(location, set_)
    member = PipelineInfo(name=profile.name, origin=folder, state_dir=profile.state_dir)
    if watch:
        draw_until_interrupted(lambda: _watched(report(member)), WATCH_S)
        return
    known = report(member)
    run = known["run"]
    try:
        document = {**_source_status(profile, host), "run": run}
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


def _show_pipelines(
    folder: Path,
    found: list[PipelineInfo],
    *,
    as_json: bool,
    sort: str = "name",
    every: float | None,
) -> None:
    """Print the pipelines once, or draw them every so many seconds."""
    view: Callable[[], RenderableType] = lambda: overview(  # noqa: E731
        [report(each) for each in found], sort, now_ms=round(time.time() * 1000)
    )
    if as_json:
        echo(json.dumps([report(each) for each in found], indent=2))
    elif not found:
        raise usage_error(
            str(folder),
            "has neither profiles nor states of pipelines",
            allowed="a folder with a profile (`waltap init FILE` writes one), or a state folder (.waltap)",
        )
    elif every is None:
        answers().print(view())
    else:
        draw_until_interrupted(view, every)


def _watched(known: dict[str, Any]) -> RenderableType:
    if known["run"] is None:
        return overview([known], now_ms=round(time.time() * 1000))
    return run_view(known["run"])


def _source_status(profile: Profile, host: Host) -> dict[str, Any]:
    """Return the state in the database and the stored offset. Raises: WaltapError."""
    from waltap.pipeline.engine.preflight import asked_of_the_stored_offset, orphan_slots

    with connected(profile, host) as (connector, parts):
        offset, lost = asked_of_the_stored_offset(
            parts.store, partial(_lost, connector), lambda found: found[1] is not None
        )
        slot = connector.slot()
        new = [] if offset is None else parts.new_tables.unknown(connector, offset)
        orphans = [each.name for each in orphan_slots(profile, connector, parts.store)]
    return {
        "pipeline": profile.name,
        "resumable": lost is None,
        "lost": None if lost is None else str(lost),
        "offset": None if offset is None else _offset_document(offset),
        "slot": None if slot is None else slot_document(slot),
        "new_tables": new,
        "orphans": orphans,
    }


def _lost(connector: Connector, offset: Offset | None) -> tuple[Offset | None, WaltapError | None]:
    """Return the offset and the error that keeps a start from it."""
    if offset is not None:
        return offset, connector.lost(offset)
    # A first run may be refused too, such as for a slot of another pipeline.
    checks = connector.check(None)
    return None, next((c.error for c in checks if c.name == "start" and c.error), None)


def _offset_document(offset: Offset) -> dict[str, Any]:
    return {
        "position": str(offset.positions),
        "slot": ", ".join(each.slot for each in offset.partitions.values()),
        "database": offset.first.database,
        "timeline": offset.first.timeline,
        "snapshot": "incomplete" if offset.snapshot is not None else "complete",
    }


def slot_document(slot: SlotStatus) -> dict[str, Any]:
    """Return a slot for ``--json``."""
    return {
        "name": slot.name,
        "decoder": slot.decoder,
        "reader_pid": slot.reader,
        "confirmed": lsn_text(slot.confirmed_lsn),
        "server": lsn_text(slot.server_lsn),
        "lag_bytes": slot.lag_bytes,
        "retained_bytes": slot.retained_bytes,
        "wal_status": slot.wal_status,
    }


def _print(document: dict[str, Any], known: dict[str, Any]) -> None:
    console = answers()
    if document["run"] is not None:
        console.print(run_view(document["run"]))
        if "source" in document:
            console.print("[yellow]The database cannot be asked from here:[/]")
            console.print(document["source"], markup=False)
    else:
        if known["problem"]:
            console.print("[yellow]It runs, but does not answer:[/]", end=" ")
            console.print(known["problem"], markup=False)
        console.print(at_rest_view(document))
    if new := document.get("new_tables"):
        text = "New tables join at the next start, and waltap.new.tables decides about older rows: "
        console.print(text + ", ".join(new), markup=False)
    if not document["resumable"]:
        started = document["offset"] is not None
        what = (
            "Streaming cannot continue from the stored offset" if started else "A run cannot start"
        )
        console.print(f"[red]{what}.[/]")
        console.print(document["lost"], markup=False)
