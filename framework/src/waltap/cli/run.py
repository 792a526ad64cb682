"""``waltap run``: capture from a database into a sink until told to stop."""

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltap.cli.profile_source import FileArgument, SetOption, SinkOption, overrides, read

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.host import Host
    from waltap.pipeline import Engine

__all__ = ["UntilIdle", "command", "limits_of", "stopped_by_signals"]

UntilIdle = Annotated[
    float | None,
    typer.Option("--until-idle", metavar="S", min=0, help="End after S seconds without a change."),
]
UntilLsn = Annotated[
    str | None,
    typer.Option("--until-lsn", metavar="LSN", help="End when everything up to LSN is delivered."),
]
MaxRecords = Annotated[
    int | None, typer.Option("--max-records", metavar="N", min=1, help="End after N records.")
]
MaxSeconds = Annotated[
    float | None, typer.Option("--max-seconds", metavar="S", min=0, help="End after S seconds.")
]


def command(
    file: FileArgument,
    sink: SinkOption = None,
    until_idle: UntilIdle = None,
    until_lsn: UntilLsn = None,
    max_records: MaxRecords = None,
    max_seconds: MaxSeconds = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            "--ready-file",
            metavar="PATH",
            help="Write this file when every change committed from then on is sure to be captured.",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Show a status page there, with /metrics, /healthz, /readyz, /api/status.",
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="FILE is a folder: run every profile in it, each as a process of its own."
        ),
    ] = False,
    set_: SetOption = None,
    set_from_stdin: Annotated[
        bool,
        typer.Option(
            "--set-from-stdin",
            help="Read further settings from standard input, a JSON list of NAME=VALUE: no list of "
            "processes shows them. --all hands on what it was given so.",
        ),
    ] = False,
) -> None:
    """Capture changes: snapshot first where the profile says so, then stream.

    Without an end given it runs until SIGINT or SIGTERM; what was written is then made durable,
    and the next run goes on from there. Exit codes: 0 done, 1 failed, 2 bad configuration, 3
    retriable and retries spent. With --all a pipeline that fails is started again, and SIGHUP has
    the folder read again.
    """
    if set_from_stdin:
        set_ = [*(set_ or ()), *_given()]
    if every:
        ends = {
            "--until-idle": until_idle, "--until-lsn": until_lsn,
            "--max-records": max_records, "--max-seconds": max_seconds,
        }  # fmt: skip
        arguments = [f"{name}={value}" for name, value in ends.items() if value is not None]
        of_one = {"--sink": sink, "--http": http, "--ready-file": ready_file}
        raise typer.Exit(_all(Path(file), arguments, set_ or [], of_one))
    from waltap.config.resolve import resolve
    from waltap.host import Host
    from waltap.pipeline import Engine

    limits = limits_of(until_idle, until_lsn, max_records, max_seconds)
    raw, host = read(file), Host()
    with telemetry(host) as show:
        profile = resolve(raw, host, sink=sink, overrides=overrides(raw, set_))
        engine = Engine(profile, host, limits=limits, ready_file=ready_file)
        show(engine)
        from waltap.telemetry.observers import observed

        monitored = _monitored(engine, host, http or profile.engine.http)
        with stopped_by_signals(engine), monitored, observed(engine, host):
            engine.run()


def _given() -> list[str]:
    """Return the settings of standard input. Raises: ConfigurationError."""
    from waltap.errors import COMMAND_LINE, ConfigurationError, Problem

    try:
        given = json.load(sys.stdin)
    except ValueError:
        given = None
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        problem = Problem("--set-from-stdin", "takes a JSON list of NAME=VALUE")
        raise ConfigurationError([problem], origin=COMMAND_LINE)
    return given


def _all(
    folder: Path, arguments: list[str], settings: list[str], of_one: Mapping[str, object]
) -> int:
    """Run the profiles of a folder until told to stop. ``of_one`` are options that many cannot have.

    Raises: ConfigurationError.
    """
    from waltap.cli.fleet import profiles
    from waltap.cli.supervisor import Supervisor, told_by_signals
    from waltap.errors import COMMAND_LINE, ConfigurationError, Problem
    from waltap.host import Host

    problems = [
        Problem(name, "is of one pipeline: set it in its profile")
        for name, value in of_one.items()
        if value is not None
    ]
    if not folder.is_dir():
        problems.append(Problem("--all", "is not given a folder", value=str(folder)))
    elif not any(profiles(folder)):
        problems.append(Problem("--all", "finds no profile in the folder", value=str(folder)))
    if problems:
        raise ConfigurationError(problems, origin=COMMAND_LINE)
    supervisor = Supervisor(lambda: sorted(profiles(folder)), arguments, settings)
    with telemetry(Host()), told_by_signals(supervisor):
        return supervisor.run()


@contextmanager
def _monitored(engine: "Engine", host: "Host", address: str | None) -> Iterator[None]:
    """Answer at ``address`` while the block lasts, where there is one."""
    if address is None:
        yield
        return
    from waltap.monitor.server import Monitor

    with Monitor(engine, address, engine.profile.engine.http_token) as monitor:
        host.register(monitor.exposition, "metrics")
        yield


def limits_of(
    until_idle: float | None,
    until_lsn: str | None,
    max_records: int | None,
    max_seconds: float | None,
) -> Any:
    """Return the `Limits` of a run. Raises: ConfigurationError when the LSN is none."""
    from waltap.errors import COMMAND_LINE, ConfigurationError, Problem
    from waltap.pipeline import Limits
    from waltap.source.position import parse_lsn

    try:
        lsn = None if until_lsn is None else parse_lsn(until_lsn)
    except ValueError as cause:
        problem = Problem(
            "--until-lsn", "is not an LSN", value=until_lsn, allowed="e.g. 16/B374D848"
        )
        raise ConfigurationError([problem], origin=COMMAND_LINE) from cause
    return Limits(
        until_idle=until_idle, until_lsn=lsn, max_records=max_records, max_seconds=max_seconds
    )


@contextmanager
def stopped_by_signals(engine: "Engine") -> Iterator[None]:
    """End the engine cleanly on the first SIGINT or SIGTERM; a second SIGINT ends the process."""

    def stop(number: int, _frame: object) -> None:
        engine.stop()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def telemetry(host: "Host", *, quiet: bool = False) -> Iterator[Any]:
    """Log to standard error, warnings only when ``quiet``.

    The yielded function has an engine's life logged too; on a terminal it shows bars there instead.
    """
    import logging

    from waltap.cli.screen import notices, notices_are_piped
    from waltap.config.environment import log_form, log_level
    from waltap.telemetry.lifecycle import LifeCycleLog
    from waltap.telemetry.log import configure

    console = None if notices_are_piped() else notices()
    terminal = console is not None and console.is_terminal
    form = log_form(terminal=terminal)
    calm = quiet or (form == "text" and terminal)
    level = log_level(default="WARNING" if calm else "INFO")

    def write(line: str) -> None:
        if console is None:
            sys.stderr.write(f"{line}\n")
        else:
            console.print(line, markup=False, emoji=False, soft_wrap=True)

    handler = configure(write, form=form, level=level)
    display: Any = None

    def show(engine: "Engine") -> None:
        nonlocal display
        profile = engine.profile
        handler.labels = profile.labels
        if not calm:
            host.register(LifeCycleLog(engine.status), "life-cycle log")
        if console is not None and form == "text" and terminal and not _writes_to_stdout(profile):
            from waltap.telemetry.progress import ProgressDisplay

            display = ProgressDisplay(console, engine.status)
            host.register(display, "progress")
            display.start()

    try:
        yield show
    finally:
        if display is not None:
            display.stop()
        logging.getLogger().removeHandler(handler)


def _writes_to_stdout(profile: "Profile") -> bool:
    """Tell whether the sink's lines would run into the bars; a path ``-`` is standard output."""
    sink = profile.sink
    values = vars(sink.properties).values() if sink.properties is not None else ()
    return sink.spec.name == "terminal" or "-" in values
