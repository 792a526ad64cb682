"""``waltap tail``: watch a database's changes on the terminal; leaves nothing behind."""

import secrets
import tempfile
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.profile_source import SetOption, SourceArgument, overrides, read
from waltap.cli.run import (
    MaxRecords,
    MaxSeconds,
    UntilIdle,
    limits_of,
    stopped_by_signals,
)
from waltap.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from waltap.config.layers import RawProfile
    from waltap.config.profile import Profile

__all__ = ["command", "traceless"]


def command(
    source: SourceArgument,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", "-t", metavar="REGEX", help="Only tables schema.table like this."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print records as JSON lines, as the jsonl sink does.")
    ] = False,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Show the rows that are there first.")
    ] = False,
    until_idle: UntilIdle = None,
    max_records: MaxRecords = None,
    max_seconds: MaxSeconds = None,
    set_: SetOption = None,
) -> None:
    """Stream the changes of all tables to the terminal, through a temporary slot.

    Slot and publication go when it ends (Ctrl-C). Tables without a primary key show their inserts
    only, so that watching never makes their updates fail.
    """
    from waltap.config.resolve import resolve
    from waltap.pipeline import Engine
    from waltap.plugins.host import Host

    limits = limits_of(until_idle, None, max_records, max_seconds)
    raw, host = read(source), Host()
    from waltap.cli.log_output import telemetry

    with tempfile.TemporaryDirectory(prefix="waltap-tail-") as state, telemetry(host, quiet=True):
        settings = traceless(raw, state, "tail", tables=table or [])
        settings |= {"skipped.operations": "none", "sink.json": "true" if as_json else "false"}
        if snapshot:
            settings["snapshot.mode"] = "initial"
        profile = resolve(
            raw, host, sink="terminal", overrides={**settings, **overrides(raw, set_)}
        )
        engine = Engine(profile, host, limits=limits)
        watching = _WatchNotice(_what(profile, table or []))
        host.register(watching, "tail")
        watching.tell("connecting")
        with stopped_by_signals(engine):
            engine.run()


class _WatchNotice:
    """Says on standard error what is watched: at once, and when changes can come."""

    def __init__(self, what: str) -> None:
        self._what, self._told = what, False

    def tell(self, state: str) -> None:
        from waltap.cli.live_console import notices

        notices().print(f"{self._what}: {state}", style="dim", markup=False, soft_wrap=True)

    @hookimpl
    def on_state(self, state: str) -> None:
        if state == "streaming" and not self._told:
            self._told = True
            self.tell("waiting for changes; Ctrl-C ends")


def _what(profile: "Profile", tables: list[str]) -> str:
    """Return in words what is watched: ``tables public.a of shop on db:5432``."""
    from waltap.base.property import declarations

    source = profile.connector.properties
    known = (
        {}
        if source is None
        else {d.name: getattr(source, d.field) for d in declarations(type(source))}
    )
    which = f"tables like {', '.join(tables)}" if tables else "all tables"
    if not tables and profile.capture.table_include:
        which = f"tables like {', '.join(profile.capture.table_include)}"
    database, host = known.get("database.dbname", ""), known.get("database.hostname", "")
    return f"{which} of {database} on {host}:{known.get('database.port', '')}"


def traceless(raw: "RawProfile", state: str, what: str, *, tables: list[str]) -> dict[str, str]:
    """Return the properties that make a run leave no trace; ``what`` stands in its names."""
    name = f"waltap_{what}_{secrets.token_hex(4)}"
    settings = {
        "name": name,
        "slot.name": name,
        "slot.temporary": "true",
        "publication.name": name,
        "publication.autocreate.mode": "filtered",
        "publication.keyless.tables": "inserts",
        "publication.drop.on.stop": "true",
        "snapshot.mode": "no_data",
        "waltap.state.dir": state,
        "offset.flush.interval.ms": "0",
    }
    if "topic.prefix" not in raw.settings:
        settings["topic.prefix"] = what
    if tables:
        settings["table.include.list"] = ",".join(tables)
    return settings
