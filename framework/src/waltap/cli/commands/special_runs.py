"""``waltap record``: keep a database's stream in a file."""

import secrets
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from waltap.base.property import declarations
from waltap.base.text import printable
from waltap.cli.commands.run import (
    MaxRecords,
    MaxSeconds,
    UntilIdle,
    limits_of,
    stopped_by_signals,
)
from waltap.cli.log_output import telemetry
from waltap.cli.profile_source import (
    FileArgument,
    SetOption,
    SinkOption,
    SourceArgument,
    connected,
    overrides,
    read,
)
from waltap.cli.terminal import echo, notices
from waltap.clock import SystemClock
from waltap.config.layers import RawProfile, read_tables
from waltap.config.profile import Profile
from waltap.config.resolve import resolve
from waltap.errors import usage_error
from waltap.plugins.hookspecs import hookimpl
from waltap.plugins.host import Host
from waltap.ports.offsets.gaps import GapCertificates
from waltap.services.recording.connector import RecordingHead
from waltap.services.recording.file import RecordingWriter
from waltap.services.recording.recorder import recording as recorded
from waltap.services.recording.recorder import replaying

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", metavar="REGEX", help="Only tables (schema.table) that match."),
]


def tail(
    source: SourceArgument,
    table: Tables = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print records as JSON lines, as the jsonl sink does.")
    ] = False,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Show the existing rows first.")
    ] = False,
    until_idle: UntilIdle = None,
    max_records: MaxRecords = None,
    max_seconds: MaxSeconds = None,
    set_: SetOption = None,
) -> None:
    """Stream all changes to the terminal through a temporary slot.

    Ctrl-C ends it and drops slot and publication; a kill leaves the publication, waltap_tail_….
    The role must be able to publish the tables. Those without a primary key show inserts only, so
    that their updates never fail.
    """
    from waltap.pipeline import Engine

    limits = limits_of(until_idle, None, max_records, max_seconds)
    raw, host = read(source), Host()
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
        watching.show("connecting")
        with stopped_by_signals(engine):
            engine.run()


class _WatchNotice:
    """Reports the watched tables: immediately, and when changes can come."""

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, False

    def show(self, state: str) -> None:
        notices().print(f"{self._what}: {state}", style="dim", markup=False, soft_wrap=True)

    @hookimpl
    def on_state(self, state: str) -> None:
        if state == "streaming" and not self._shown:
            self._shown = True
            self.show("waiting for changes; Ctrl-C ends")


def _what(profile: Profile, tables: list[str]) -> str:
    """Describe the source: ``tables public.a of shop on db:5432``."""
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


def traceless(raw: RawProfile, state: str, what: str, *, tables: list[str]) -> dict[str, str]:
    """Return properties for a run without traces; names contain ``what``."""
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


def replay(
    recording: Annotated[
        Path, typer.Argument(metavar="RECORDING", help="File that `waltap record` wrote.")
    ],
    sink: SinkOption = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Profile whose properties, transforms, format and sink are used.",
        ),
    ] = None,
    max_records: MaxRecords = None,
    max_seconds: MaxSeconds = None,
    set_: SetOption = None,
) -> None:
    """Run a recording through decoder, transforms, format and sink.

    Only the sink's output is kept, so you may replay a recording again.
    """
    from waltap.pipeline import Engine

    made, host = RecordingHead(recording), Host()
    raw = _bare(made) if profile is None else read(profile)
    limits = replace(limits_of(None, None, max_records, max_seconds), until_lsn=made.end)
    with tempfile.TemporaryDirectory(prefix="waltap-replay-") as state, telemetry(host) as show:
        found = resolve(raw, host, sink=sink, overrides=overrides(raw, set_))
        engine = Engine(replaying(found, made, host, Path(state)), host, limits=limits)
        show(engine)
        with stopped_by_signals(engine):
            engine.run()


def _bare(made: RecordingHead) -> RawProfile:
    """Return a profile that says nothing but where the recording is."""
    source = {
        "type": "recording",
        "recording.path": str(made.path.absolute()),
        "plugin.name": made.header.decoder,
    }
    return read_tables({"name": "replay", "source": source}, str(made.path))


def repair(file: FileArgument, sink: SinkOption = None, set_: SetOption = None) -> None:
    """Close gaps: continue at a new slot, and read the tables of the gap again.

    Stop the pipeline first. The command ends when every table was read and the gap certificates
    are closed; then use `waltap run`. Without a gap it does nothing.
    """
    from waltap.pipeline.api.repair import GapRepair

    raw, host = read(file), Host()
    with telemetry(host) as show:
        profile = resolve(raw, host, sink=sink, overrides=overrides(raw, set_))
        if not _lost(profile, host):
            echo(f"{profile.name} has no gap")
            return
        repair = GapRepair(profile, host)
        show(repair.engine)
        clock = SystemClock()
        with stopped_by_signals(repair.engine):
            reread = repair.run(lambda: clock.time_ns() // 1_000_000)
    for name, table in reread.items():
        equal = ", equal at the destination" if table.compared else ""
        echo(f"{printable(name)}: {table.rows:,} rows were read again{equal}")
    echo("the gap is closed")


def _lost(profile: Profile, host: Host) -> bool:
    """Return whether a gap is open or the position is unavailable.

    Raises: WaltapError.
    """
    from waltap.pipeline.engine.preflight import asked_of_the_stored_offset

    if GapCertificates(profile.state_dir).open():
        return True
    with connected(profile, host) as (connector, stages):
        error = asked_of_the_stored_offset(
            stages.store,
            lambda offset: None if offset is None else connector.lost(offset),
            lambda found: found is not None,
        )
    return error is not None and error.loses


def record(
    source: SourceArgument,
    recording: Annotated[
        Path,
        typer.Argument(metavar="RECORDING", help="File to write; an existing one is replaced."),
    ],
    table: Tables = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            "--ready-file",
            metavar="PATH",
            help="Write this file when every later commit is sure to be recorded.",
        ),
    ] = None,
    until_idle: UntilIdle = None,
    max_records: Annotated[
        int | None,
        typer.Option(
            "--max-records",
            metavar="N",
            min=1,
            help="End with the transaction that makes it N records or more.",
        ),
    ] = None,
    max_seconds: MaxSeconds = None,
    set_: SetOption = None,
) -> None:
    """Record the stream of a database, from now on, for `waltap replay`.

    The file has the server's messages with rows, and all queries of its catalogue. Slot and
    publication are temporary; the profile's stay unchanged.
    """
    from waltap.pipeline import Engine

    limits = limits_of(until_idle, None, max_records, max_seconds)
    limits = replace(limits, whole_transactions=True)  # of others nothing is replayed
    raw, host = read(source), Host()
    with tempfile.TemporaryDirectory(prefix="waltap-record-") as state, telemetry(host) as show:
        settings = traceless(raw, state, "record", tables=table or [])
        profile = resolve(raw, host, sink="null", overrides={**settings, **overrides(raw, set_)})
        with _writer(recording) as writer:
            recorded_profile = recorded(profile, writer, f"recording_{secrets.token_hex(8)}")
            engine = Engine(recorded_profile, host, limits=limits, ready_file=ready_file)
            show(engine)
            with stopped_by_signals(engine):
                engine.run()
    echo(f"{recording}: {writer.frames:,} frames")


def _writer(path: Path) -> RecordingWriter:
    try:
        return RecordingWriter(path)
    except OSError as cause:
        raise usage_error(str(path), f"cannot be written: {cause.strerror}") from cause
