"""``waltap repair``: reads anew what a gap may have left out."""

from typing import TYPE_CHECKING

from waltap.base.text import printable
from waltap.cli.live_console import echo
from waltap.cli.profile_source import FileArgument, SetOption, SinkOption, overrides, read

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.plugins.host import Host

__all__ = ["command"]


def command(file: FileArgument, sink: SinkOption = None, set_: SetOption = None) -> None:
    """Make good what could not be delivered: go on at a new slot, and read the tables of the gap anew.

    The pipeline must not run meanwhile. It ends when every table was read, and closes the certificates of
    the gaps; `waltap run` goes on from there. Where there is no gap it says so, and does nothing.
    """
    from waltap.cli.run import stopped_by_signals
    from waltap.clock import SystemClock
    from waltap.config.resolve import resolve
    from waltap.pipeline.api.repair import GapRepair
    from waltap.plugins.host import Host

    raw, host = read(file), Host()
    from waltap.cli.log_output import telemetry

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
        echo(f"{printable(name)}: {table.rows:,} rows were read anew{equal}")
    echo("the gap is closed")


def _lost(profile: "Profile", host: "Host") -> bool:
    """Tell whether a gap is open, or the stored position cannot be had. Raises: WaltapError."""
    from waltap.cli.connection import connected
    from waltap.pipeline.setup.offline_status import asked_of_the_stored_offset
    from waltap.ports.offsets.gaps import GapCertificates

    if GapCertificates(profile.engine.state_dir / profile.name).open():
        return True
    with connected(profile, host) as (connector, stages):
        error = asked_of_the_stored_offset(
            stages.store,
            lambda offset: None if offset is None else connector.lost(offset),
            lambda found: found is not None,
        )
    return error is not None and error.loses
