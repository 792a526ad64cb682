"""The Spark driver process: ``python -m waltap_spark.driver``, or ``waltap spark apply``.

As a child of an engine (``--with-parent``) it ends when its standard input does, that is when the
engine closes it or is gone, however that died; before that it applies what the change log holds.
Exit codes: 0 done, 1 failed and worth another try, 2 failed for good, 3 the tables are in use.
"""

import argparse
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from waltap.errors import WaltapError
from waltap_sinks.changelog import ChangeLog
from waltap_spark.applier import Applier, ApplyOptions, first_words
from waltap_spark.errors import OutputInUse
from waltap_spark.follower import Follower, FollowOptions
from waltap_spark.output import Output
from waltap_spark.session import prepare, start_session

__all__ = ["FAILED", "LOCKED", "REFUSED", "main", "run_driver"]

log = logging.getLogger(__name__)

FAILED: Final = 1
REFUSED: Final = 2
LOCKED: Final = 3

PREDECESSOR_S: Final = 60.0
"""How long to wait for a driver that is just finishing, before saying that the tables are in use."""


def run_driver(
    changelog: str,
    output: str,
    *,
    stopping: Callable[[], bool],
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    apply: ApplyOptions | None = None,
    follow: FollowOptions | None = None,
) -> int:
    """Keep the tables at ``output`` up to date until ``stopping``; return the rows applied.

    Raises: JavaMissing, OutputInUse, OutputMismatch, TypeChanged, ChangeLogUnavailable, ….
    """
    tables = Output(output)
    _take(tables, changelog)
    started = time.monotonic()
    log.info("starting spark")
    session = start_session("waltap", master=master, settings=settings)
    try:
        log.info("spark is ready", extra={"duration_ms": _since(started)})
        spark, reader = prepare(session), ChangeLog(changelog)
        applier = Applier(spark, reader, tables, apply)
        before = applier.open().rows_applied
        Follower(reader, applier, follow).follow(stopping)
        log.info("finished", extra={"lsn": str(applier.state.mark)})
        return applier.state.rows_applied - before
    finally:
        tables.close()
        session.stop()


def _take(tables: Output, changelog: str) -> None:
    """Take hold of the output; a driver that is just finishing is waited for."""
    location = ChangeLog(changelog).store.location
    limit = time.monotonic() + PREDECESSOR_S
    while True:
        try:
            tables.open(location)
        except OutputInUse:
            if time.monotonic() >= limit:
                raise
            time.sleep(0.2)
        else:
            return


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)


def main(arguments: list[str] | None = None) -> int:
    """Run the driver as a process of its own; return its exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stopping = _parent_gone() if options.with_parent else asked_to_stop()
    try:
        run_driver(
            options.changelog,
            options.output,
            stopping=stopping,
            master=options.master,
            settings=dict(pair.split("=", 1) for pair in options.set or ()),
            apply=ApplyOptions(type_change=options.type_change),
            follow=FollowOptions(trigger_ms=options.trigger_ms, retention_h=options.retention_h),
        )
    except OutputInUse as error:
        log.error("%s", error)  # noqa: TRY400 - the text says all; a trace would hide it
        return LOCKED
    except WaltapError as error:
        log.error("%s", error)  # noqa: TRY400
        return REFUSED
    except Exception as error:
        log.exception("failed")
        log.error("%s: %s", type(error).__name__, first_words(error))  # noqa: TRY400 - the last word
        return FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="waltap_spark.driver", description=__doc__)
    parser.add_argument("--changelog", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--set", action="append", metavar="spark.NAME=VALUE")
    parser.add_argument("--type-change", choices=("fail", "string"), default="fail")
    parser.add_argument("--trigger-ms", type=int, default=200)
    parser.add_argument("--retention-h", type=float, default=2.0)
    parser.add_argument("--with-parent", action="store_true")
    return parser


def _parent_gone() -> Callable[[], bool]:
    """Return a test that becomes true for good when standard input has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine, which then tells us
    gone = False

    def test() -> bool:
        nonlocal gone
        if not gone and select.select([sys.stdin], [], [], 0)[0]:
            gone = os.read(sys.stdin.fileno(), 1024) == b""
        return gone

    return test


def asked_to_stop() -> Callable[[], bool]:
    """Return a test that becomes true with SIGINT or SIGTERM."""
    asked = False

    def note(_number: int, _frame: object) -> None:
        nonlocal asked
        asked = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return lambda: asked


if __name__ == "__main__":
    sys.exit(main())
