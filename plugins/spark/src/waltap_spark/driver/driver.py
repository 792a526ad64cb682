"""Run the Spark driver: ``python -m waltap_spark.driver.driver``.

``waltap spark apply`` runs the same code. As a child of an engine it ends when its standard
input ends, because the engine closed it or died. Before that it applies the rest of the change
log. The sink's properties come in the environment (`waltap_spark.driver.settings.GIVEN`), so
that no argument has credentials.

Exit codes: 0 done, others as `waltap_spark.driver.settings` has them.
"""

import argparse
import logging
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

from waltap.base.files.errors import FilesUnavailable
from waltap.base.files.store import FileStore
from waltap.errors import RetryVerdict, WaltapError
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.changelog.errors import ChangeLogMissing
from waltap_spark.apply.snapshot_splits import DriverInput, TableSplits
from waltap_spark.config.properties import SparkProperties
from waltap_spark.driver.settings import (
    FAILED,
    LOCKED,
    REFUSED,
    SUSPENDED,
    UNREACHABLE,
    apply_options,
    properties_of,
    taken_settings,
)
from waltap_spark.errors import (
    CatalogueUnreachable,
    ChunkSourceUnreachable,
    JvmEnded,
    OutputInUse,
    SparkRefused,
    TablesSuspended,
    first_words,
)
from waltap_spark.formats.choice import FormatChoice
from waltap_spark.session.failures import explained_failures
from waltap_spark.session.java import require_java, require_pyspark
from waltap_spark.session.session import prepare, start_session
from waltap_spark.state.output import SparkOutput

log = logging.getLogger(__name__)

# Seconds that a stopping driver waits for its predecessor to finish.
PREDECESSOR_S: Final = 60.0

STATUSES: Final[dict[type[WaltapError], int]] = {
    OutputInUse: LOCKED,
    JvmEnded: FAILED,
    ChunkSourceUnreachable: UNREACHABLE,
    TablesSuspended: SUSPENDED,
    # another try may succeed
    SparkRefused: FAILED,
    CatalogueUnreachable: FAILED,
}

# Seconds between two log lines while the driver waits.
REPORT_EVERY_S: Final = 30.0


def run_driver(
    changelog: "FileStore | str",
    output: str,
    properties: SparkProperties,
    *,
    stopping: Callable[[], bool],
    patience_s: float = PREDECESSOR_S,
    table_splits: Callable[[str], TableSplits | None] | None = None,
    once: bool = False,
) -> int:
    """Keep the tables at ``output`` up to date until ``stopping``.

    Returns the number of applied rows. ``once`` applies the present changes and ends, as
    `LogFollower.once` does. ``patience_s`` is how long a stopping driver waits for another
    process to release the tables. ``table_splits`` is for
    `waltap_spark.apply.external_snapshots.ExternalSnapshots`.

    Raises: JavaMissing, PysparkUnfit, JvmEnded, SparkRefused, OutputInUse, OutputMismatch,
    ChangeLogMissing, TypeChanged, FilesUnavailable, ….
    """
    # all checks come before Spark, whose start takes seconds
    require_java()
    files = changelog if isinstance(changelog, FileStore) else FileStore(changelog, properties)
    reader, tables = ChangeLog(files), SparkOutput(FileStore(output, properties))
    if not reader.exists():
        raise _missing(reader)
    _take(tables, reader, stopping, patience_s)
    try:
        require_pyspark()
        with explained_failures(properties.settings.get("spark.driver.memory")):
            return _apply(reader, tables, properties, None if once else stopping, table_splits)
    finally:
        tables.close()


def _apply(
    reader: ChangeLog,
    tables: SparkOutput,
    properties: SparkProperties,
    stopping: Callable[[], bool] | None,
    table_splits: Callable[[str], TableSplits | None] | None,
) -> int:
    """Follow the log until ``stopping``; None applies it once."""
    # they import pyspark, whose version is checked before
    from waltap_spark.apply.applier import OutputApplier
    from waltap_spark.driver.follower import LogFollower

    started = time.monotonic()
    log.info("starting spark")
    choice = FormatChoice(properties.format, properties.format_properties)
    session = start_session(
        "waltap",
        master=properties.master,
        settings=properties.settings,
        more=choice.settings,
        storage=properties,
    )
    try:
        log.info(
            "spark is ready", extra={"duration_ms": round((time.monotonic() - started) * 1000)}
        )
        own = prepare(session)
        applier = OutputApplier(
            own, reader, tables, apply_options(properties), choice, table_splits
        )
        before = applier.open().rows_applied
        try:
            follower = LogFollower(reader, applier, properties)
            if stopping is None:
                follower.once()
            else:
                follower.follow(stopping)
        finally:
            applier.close()  # its thread must end before the session that it uses
        log.info("finished", extra={"lsn": str(applier.state.log_position)})
        return applier.state.rows_applied - before
    finally:
        session.stop()


def _missing(reader: ChangeLog) -> WaltapError:
    location = reader.store.location
    inner = f"{location.rstrip('/')}/changelog"
    if ChangeLog(reader.store.reached_alike(inner)).exists():
        return ChangeLogMissing(f"{location} is not a change log, but {inner} is one")
    return ChangeLogMissing(f"{location} is not a change log: it has no folder of manifests")


def _take(
    tables: SparkOutput, reader: ChangeLog, stopping: Callable[[], bool], patience_s: float
) -> None:
    """Lock the output as soon as no other process has it.

    The kernel releases the lock when its holder ends, so a successor continues immediately. A
    holder that still runs is waited for, and for ``patience_s`` longer once the driver should
    stop.
    """
    limit, next_report = None, 0.0
    while True:
        now = time.monotonic()
        if limit is None and stopping():
            limit = now + patience_s
        try:
            tables.open(reader.store.location, reader.identity())
        except OutputInUse as error:
            if limit is not None and now >= limit:
                raise
            if now >= next_report:
                next_report = now + REPORT_EVERY_S
                patience = "" if limit is None else f"; it waits up to {limit - now:.0f} s longer"
                log.info("waiting: %s%s", error.problem, patience)
            time.sleep(0.2)
        else:
            return


def main(arguments: list[str] | None = None) -> int:
    """Run the driver as a process; return its exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # Ctrl-C is for the engine, which then closes this process's input
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inbox = DriverInput(sys.stdin.buffer)
    try:
        properties = properties_of(options.set or (), options.output, taken_settings())
        run_driver(
            options.changelog,
            options.output,
            properties,
            stopping=inbox.gone,
            # the process of an engine that was killed may still apply changes
            patience_s=properties.drain_ms / 1000,
            table_splits=inbox.of,
        )
    except WaltapError as error:
        log.error("%s", error)  # noqa: TRY400 - a trace would hide the text
        return _status(error)
    except Exception as error:
        log.exception("failed")
        log.error("%s: %s", type(error).__name__, first_words(error))  # noqa: TRY400
        return FAILED
    return 0


def _status(error: WaltapError) -> int:
    for kind, status in STATUSES.items():
        if isinstance(error, kind):
            return status
    # the file system or the store may answer a later try
    passes = isinstance(error, FilesUnavailable) and error.retry is not RetryVerdict.NEVER
    return FAILED if passes else REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="waltap_spark.driver.driver", description=__doc__)
    parser.add_argument("--changelog", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help="as in a profile")
    return parser


def asked_to_stop() -> Callable[[], bool]:
    """Return a test that becomes true with SIGINT or SIGTERM."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda given, _frame: asked.append(given))
    return lambda: bool(asked)


if __name__ == "__main__":
    sys.exit(main())
