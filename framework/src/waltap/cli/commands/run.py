"""``waltap run``: capture from a database into a sink until stopped."""

import json
import logging
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from waltap.cli import uncollected
from waltap.cli.profile_source import FileArgument, SetOption, SinkOption, overrides, read
from waltap.pipeline.engine.process_memory import configure_allocators

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.pipeline import Engine


log = logging.getLogger(__name__)

# The end of a process whose sink does not return from a call: a signal handler runs in the main
# thread, which may be inside it.

POLL_S: Final = 0.1
ENDS: Final = frozenset({signal.SIGINT, signal.SIGTERM})


@contextmanager
def handled(handlers: "Mapping[signal.Signals, Callable[[int, object], None]]") -> Iterator[None]:
    """Handle signals by ``handlers`` in the block."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_at_last(engine: "Engine") -> Iterator[None]:
    """End the process if the sink does not return after a stop.

    After a signal it waits ``waltap.stop.timeout.ms``. A crash loses nothing, and neither does
    this.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    ended = threading.Event()
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_wait_for_end, args=(engine, ours, ended), name="waltap-end")
    thread.daemon = True
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        theirs.close()
        thread.join()
        ours.close()


def _wait_for_end(engine: "Engine", signals: socket.socket, ended: threading.Event) -> None:
    asked: float | None = None
    while not ended.is_set():
        longest = (engine.profile.engine.stop_timeout_ms / 1000) or math.inf
        readable, _, _ = select.select([signals], [], [], None if asked is None else POLL_S)
        if readable:
            numbers = signals.recv(64)
            if not numbers:
                return
            if asked is None and ENDS.intersection(numbers):
                engine.stop(longest)
                asked = time.monotonic()
        held = None if asked is None else engine.pending_call(asked)
        if held is not None and held[1] >= longest:
            _end(*held)


def _end(what: str, seconds: float) -> None:
    """End the process now; its locks go with it."""
    from waltap.cli.application import exit_code
    from waltap.services.monitor.counts import SinkUnresponsive

    error = SinkUnresponsive(f"a stop was asked for, and {what} for {seconds:.0f} s")
    log.error("%s", error)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(exit_code(error))


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

ReadyFile = Annotated[
    Path | None,
    typer.Option(
        "--ready-file",
        metavar="PATH",
        help="Write this file when every later commit is sure to be captured.",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Show a status page there, with /metrics, /healthz, /readyz, /api/status.",
    ),
]
LogTo = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        metavar="PATH",
        help="Append the log to this file (waltap.log.file); with --all the logs of all pipelines.",
    ),
]
ExitOnChange = Annotated[
    bool,
    typer.Option(
        "--exit-on-change",
        help="End with exit code 4 if SIGHUP finds a change that needs a restart, for the "
        "supervisor.",
    ),
]


def run(
    file: FileArgument,
    sink: SinkOption = None,
    until_idle: UntilIdle = None,
    until_lsn: UntilLsn = None,
    max_records: MaxRecords = None,
    max_seconds: MaxSeconds = None,
    ready_file: ReadyFile = None,
    http: Http = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="FILE is a folder: run every profile in it, each in its own process."
        ),
    ] = False,
    set_: SetOption = None,
    log_file: LogTo = None,
    exit_on_change: ExitOnChange = False,
    set_from_stdin: Annotated[
        bool,
        typer.Option(
            "--set-from-stdin",
            help="Read more settings from standard input, a JSON list of NAME=VALUE, so that no "
            "list of processes shows them. --all passes them on.",
        ),
    ] = False,
) -> None:
    """Capture changes: snapshot first where the profile says so, then stream.

    It runs until SIGINT or SIGTERM; it then makes everything durable, and the next run continues
    there. SIGHUP reads the profile again: properties that can change in a run apply, others are
    named. Exit codes: 0 done, 1 failed, 2 bad configuration, 3 retriable and retries spent, 4 see
    --exit-on-change. With --all a failed pipeline is restarted, and SIGHUP reads the folder and
    its profiles again.
    """
    configure_allocators()
    if set_from_stdin:
        set_ = [*(set_ or ()), *_given()]
    if log_file is not None:
        set_ = [*(set_ or ()), f"waltap.log.file={log_file.absolute()}"]
    if every:
        ends = {
            "--until-idle": until_idle, "--until-lsn": until_lsn,
            "--max-records": max_records, "--max-seconds": max_seconds,
        }  # fmt: skip
        arguments = [f"{name}={value}" for name, value in ends.items() if value is not None]
        of_one = {"--sink": sink, "--http": http, "--ready-file": ready_file}
        raise typer.Exit(_all(Path(file), arguments, set_ or [], of_one, log_file))
    with uncollected():
        from waltap.cli.commands.supervisor import START_OVER, ProfileReloader, reloaded_by_signal
        from waltap.cli.log_output import telemetry
        from waltap.config.resolve import resolve
        from waltap.pipeline import Engine
        from waltap.plugins.host import Host

        limits = limits_of(until_idle, until_lsn, max_records, max_seconds)
        host = Host()

    def load() -> "Profile":
        raw = read(file)
        raw.require_running()
        return resolve(raw, host, sink=sink, overrides=overrides(raw, set_))

    with telemetry(host) as show:
        with uncollected():
            engine = Engine(load(), host, limits=limits, ready_file=ready_file)
        show(engine)
        reloading = ProfileReloader(engine, load, show.apply_profile, exits=exit_on_change)
        from waltap.services.telemetry.observers import observed

        again = reloaded_by_signal(reloading, engine.stop)
        with stopped_by_signals(engine), again, observed(engine, host, http=http):
            engine.run()
    if reloading.start_over:
        raise typer.Exit(START_OVER)


def epilog() -> str:
    """Return the last help paragraph: the properties that SIGHUP changes."""
    from waltap.base.property import declarations
    from waltap.config.pipeline_properties import EngineProperties

    names = [each.name for each in declarations(EngineProperties) if each.reloadable]
    return (
        f"Properties that SIGHUP changes while it runs: {', '.join(names)}. Others need a restart."
    )


def _given() -> list[str]:
    """Return the settings of standard input. Raises: ConfigurationError."""
    from waltap.errors import usage_error

    try:
        given = json.load(sys.stdin)
    except ValueError:
        given = None
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise usage_error("--set-from-stdin", "takes a JSON list of NAME=VALUE")
    return given


def _all(
    folder: Path,
    arguments: list[str],
    settings: list[str],
    of_one: Mapping[str, object],
    log_file: Path | None,
) -> int:
    """Run the profiles of a folder until stopped.

    ``of_one`` are options that several profiles cannot have. Raises: ConfigurationError.
    """
    from waltap.cli.commands.status import profiles
    from waltap.cli.commands.supervisor import Supervisor
    from waltap.cli.log_output import telemetry
    from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem
    from waltap.plugins.host import Host

    problems = [
        PropertyProblem(name, "is of one pipeline: set it in its profile")
        for name, value in of_one.items()
        if value is not None
    ]
    if not folder.is_dir():
        problems.append(PropertyProblem("--all", "is not given a folder", value=str(folder)))
    elif not any(profiles(folder)):
        problems.append(
            PropertyProblem("--all", "finds no profile in the folder", value=str(folder))
        )
    if problems:
        raise ConfigurationError(problems, origin=COMMAND_LINE)
    supervisor = Supervisor(lambda: sorted(profiles(folder)), arguments, settings)

    def act(number: int, _frame: object) -> None:
        does = {signal.SIGHUP: supervisor.read_again, signal.SIGINT: supervisor.interrupt}
        does.get(signal.Signals(number), supervisor.stop)()

    with telemetry(Host()) as show, handled(dict.fromkeys((*ENDS, signal.SIGHUP), act)):
        if log_file is not None:
            show.log_to(log_file.absolute())
        return supervisor.run()


def limits_of(
    until_idle: float | None,
    until_lsn: str | None,
    max_records: int | None,
    max_seconds: float | None,
) -> Any:
    """Return the `Limits` of a run. Raises: ConfigurationError for a bad LSN."""
    from waltap.changes.transactions.position import parse_lsn
    from waltap.errors import usage_error
    from waltap.pipeline import Limits

    try:
        lsn = None if until_lsn is None else parse_lsn(until_lsn)
    except ValueError as cause:
        raise usage_error(
            "--until-lsn", "is not an LSN", value=until_lsn, allowed="e.g. 16/B374D848"
        ) from cause
    return Limits(
        until_idle=until_idle, until_lsn=lsn, max_records=max_records, max_seconds=max_seconds
    )


@contextmanager
def stopped_by_signals(engine: "Engine") -> Iterator[None]:
    """End the engine cleanly on SIGINT or SIGTERM.

    A second SIGINT ends the process.
    """

    def stop(number: int, _frame: object) -> None:
        engine.stop()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    with handled(dict.fromkeys(ENDS, stop)), ended_at_last(engine):
        yield
