"""``waltap record``: keep a database's stream in a file."""

import secrets
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.live_console import echo
from waltap.cli.profile_source import SetOption, SourceArgument, overrides, read
from waltap.cli.run import (
    MaxSeconds,
    UntilIdle,
    limits_of,
    stopped_by_signals,
)
from waltap.cli.tail import traceless

if TYPE_CHECKING:
    from waltap.services.recording.file import RecordingWriter

__all__ = ["command"]


def command(
    source: SourceArgument,
    recording: Annotated[
        Path,
        typer.Argument(metavar="RECORDING", help="File to write; one that is there is replaced."),
    ],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", "-t", metavar="REGEX", help="Only tables schema.table like this."),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            "--ready-file",
            metavar="PATH",
            help="Write this file when every change committed from then on is sure to be recorded.",
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

    The file holds what the server sent, rows included, and what was asked of its catalogue. Slot and
    publication are temporary; the profile's own are not touched.
    """
    from waltap.config.resolve import resolve
    from waltap.pipeline import Engine
    from waltap.plugins.host import Host
    from waltap.services.recording.profiles import recording as recorded

    limits = limits_of(until_idle, None, max_records, max_seconds)
    limits = replace(limits, whole_transactions=True)  # of others nothing is replayed
    raw, host = read(source), Host()
    from waltap.cli.log_output import telemetry

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


def _writer(path: Path) -> "RecordingWriter":
    from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem
    from waltap.services.recording.file import RecordingWriter

    try:
        return RecordingWriter(path)
    except OSError as cause:
        problem = PropertyProblem(str(path), f"cannot be written: {cause.strerror}")
        raise ConfigurationError([problem], origin=COMMAND_LINE) from cause
