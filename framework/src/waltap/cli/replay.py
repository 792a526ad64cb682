"""``waltap replay``: run a recording through the pipeline, without a server."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.profile_source import SetOption, SinkOption, overrides, read
from waltap.cli.run import MaxRecords, MaxSeconds, limits_of, stopped_by_signals

if TYPE_CHECKING:
    from waltap.config.layers import RawProfile
    from waltap.services.recording.connector import RecordingHead

__all__ = ["command"]


def command(
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
    """Run a recording through decoder, transforms, format and sink, from its beginning to its end.

    Nothing is kept of the run but what the sink wrote: the same recording may be replayed again.
    """
    from dataclasses import replace

    from waltap.config.resolve import resolve
    from waltap.pipeline import Engine
    from waltap.plugins.host import Host
    from waltap.services.recording.connector import RecordingHead
    from waltap.services.recording.profiles import replaying

    made, host = RecordingHead(recording), Host()
    raw = _bare(made) if profile is None else read(profile)
    limits = replace(limits_of(None, None, max_records, max_seconds), until_lsn=made.end)
    from waltap.cli.log_output import telemetry

    with tempfile.TemporaryDirectory(prefix="waltap-replay-") as state, telemetry(host) as show:
        found = resolve(raw, host, sink=sink, overrides=overrides(raw, set_))
        engine = Engine(replaying(found, made, host, Path(state)), host, limits=limits)
        show(engine)
        with stopped_by_signals(engine):
            engine.run()


def _bare(made: "RecordingHead") -> "RawProfile":
    """Return a profile that says nothing but where the recording is."""
    from waltap.config.layers import read_tables

    source = {
        "type": "recording",
        "recording.path": str(made.path.absolute()),
        "plugin.name": made.header.decoder,
    }
    return read_tables({"name": "replay", "source": source}, str(made.path))
