"""An observer that logs what happens to a pipeline: snapshot, slot, throughput, failures."""

import logging
import time
from collections.abc import Callable

from waltap.decode.relation import Relation
from waltap.errors import WaltapError
from waltap.hookspecs import hookimpl
from waltap.pipeline.status import PipelineStatus
from waltap.source.position import lsn_text
from waltap.telemetry.summary import summary_fields

__all__ = ["LifeCycleLog"]

THROUGHPUT_EVERY_S = 10.0
TABLES_NAMED = 20
"""Tables of a snapshot that have lines of their own; beyond, a line now and then tells how many are."""

logger = logging.getLogger(__name__)


class LifeCycleLog:
    """Registered by ``waltap run``; writes at most one line of throughput in ten seconds, and one at the
    end of what the run did. The numbers are those that ``status`` gives (`Engine.status`)."""

    def __init__(self, status: Callable[[], PipelineStatus]) -> None:
        self._status = status
        self._told_events = 0
        self._since: float | None = None
        self._begun: set[str] = set()
        self._read = self._rows = 0
        self._told_tables = 0.0

    @hookimpl
    def on_state(self, pipeline: str, state: str) -> None:
        """Log at the end what the run did."""
        if state in {"stopped", "failed"}:
            logger.info("delivered", extra={"pipeline": pipeline, **summary_fields(self._status())})

    @hookimpl
    def on_batch(self, pipeline: str) -> None:
        """Now and then tell how many events a second arrived."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            return
        passed = now - self._since
        if passed >= THROUGHPUT_EVERY_S:
            status = self._status()
            rows = status.events - self._told_events
            fields = {
                "pipeline": pipeline,
                "rows": rows,
                "rows_per_second": round(rows / passed),
                "lsn": lsn_text(status.partitions[0].written.end_lsn),
            }
            logger.info("throughput", extra=fields)
            self._told_events, self._since = status.events, now

    @hookimpl
    def on_snapshot(self, pipeline: str, event: str, table: str, rows: int) -> None:
        """Log beginnings and ends, not every progress; of many tables how many are read, now and then."""
        if event == "progress":
            return
        fields: dict[str, object] = {"pipeline": pipeline}
        if table:
            self._begun.add(table)
            done = event == "table_completed"
            self._read, self._rows = self._read + done, self._rows + rows * done
            many = len(self._begun) > TABLES_NAMED
            named = {**fields, "relation": table, "rows": rows}
            level = logging.DEBUG if many else logging.INFO
            logger.log(level, "snapshot %s", event.replace("_", " "), extra=named)
            if many and time.monotonic() - self._told_tables >= THROUGHPUT_EVERY_S:
                self._told_tables = time.monotonic()
                whole = max(len(self._status().captured_tables), len(self._begun))
                text = "snapshot progress: %s of %s tables are read"
                logger.info(text, self._read, whole, extra={**fields, "rows": self._rows})
            return
        if event != "started" and self._begun:
            fields |= {"tables": self._read, "rows": self._rows}
        self._begun, self._read, self._rows = set(), 0, 0
        logger.info("snapshot %s", event, extra=fields)

    @hookimpl
    def on_schema_change(self, pipeline: str, old: Relation | None, new: Relation) -> None:
        """Log relations that changed their shape."""
        if old is not None:
            fields = {"pipeline": pipeline, "relation": new.name}
            logger.info("schema changed", extra=fields)

    @hookimpl
    def on_slot(self, pipeline: str, event: str, slot: str, lsn: int) -> None:
        """Log creation and removal; confirmations are too many."""
        fields = {"pipeline": pipeline, "slot": slot, "lsn": lsn_text(lsn)}
        level = logging.DEBUG if event == "confirmed" else logging.INFO
        logger.log(level, "slot %s", event, extra=fields)

    @hookimpl
    def on_failure(self, pipeline: str, error: Exception, retried: bool) -> None:
        """Log the error with its code."""
        code = error.code if isinstance(error, WaltapError) else "WT-9000"
        text = error.problem if isinstance(error, WaltapError) else type(error).__name__
        logger.log(
            logging.WARNING if retried else logging.ERROR,
            "%s: %s",
            "failed, trying again" if retried else "failed",
            text,
            extra={"pipeline": pipeline, "error_code": code},
        )
