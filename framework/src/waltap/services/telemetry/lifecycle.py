"""Log snapshots, slots, throughput and failures of a pipeline."""

import logging
import time
from collections.abc import Callable

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import lsn_text
from waltap.errors import WaltapError
from waltap.plugins.hookspecs import hookimpl
from waltap.services.monitor.status import PipelineStatus

logger = logging.getLogger(__name__)


def summary_fields(status: PipelineStatus) -> dict[str, object]:
    """Return the summary as fields of a log line.

    ``lsn`` is the last position that the sink has.
    """
    found: dict[str, object] = {
        "changes": status.changes,
        "snapshot_rows": status.snapshot_rows,
        "transactions": status.transactions,
        "seconds": round((status.at_ms - status.started_ms) / 1000, 1),
    }
    # a run that failed before its stream or snapshot has no position
    if status.partitions:
        found["lsn"] = lsn_text(status.partitions[0].written.end_lsn)
    return found


def summary_line(status: PipelineStatus) -> str:
    """Return the summary in words."""
    found = summary_fields(status)
    text = (
        f"{found['changes']:,} changes in {found['transactions']:,} transactions and "
        f"{found['snapshot_rows']:,} snapshot rows in {found['seconds']:,} s"
    )
    return f"{text}, up to {found['lsn']}" if "lsn" in found else text


THROUGHPUT_EVERY_S = 10.0
# More tables than this would flood the log: then one line in ten seconds has their number.
TABLES_NAMED = 20


class LifeCycleLog:
    """Log the life of a pipeline for ``waltap run``.

    It logs the throughput at most every ten seconds, and a summary at the end. The numbers come from
    ``status`` (`Engine.status`).
    """

    def __init__(self, status: Callable[[], PipelineStatus]) -> None:
        self._status = status
        self._reported_events = 0
        self._since: float | None = None
        self._begun: set[str] = set()
        self._read = self._rows = 0
        self._tables_reported_at = 0.0

    @hookimpl
    def on_state(self, pipeline: str, state: str) -> None:
        """Log the summary at the end of the run."""
        if state in {"stopped", "failed"}:
            logger.info("delivered", extra={"pipeline": pipeline, **summary_fields(self._status())})

    @hookimpl
    def on_batch(self, pipeline: str) -> None:
        """Log the events per second at a limited rate."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            return
        passed = now - self._since
        if passed >= THROUGHPUT_EVERY_S:
            status = self._status()
            events = status.events - self._reported_events
            fields = {
                "pipeline": pipeline,
                "events": events,
                "events_per_second": round(events / passed),
                "lsn": lsn_text(status.partitions[0].written.end_lsn),
            }
            logger.info("throughput", extra=fields)
            self._reported_events, self._since = status.events, now

    @hookimpl
    def on_snapshot(self, pipeline: str, event: str, table: str, rows: int) -> None:
        """Log the start and the end of snapshots and tables."""
        if event == "progress":
            return
        fields: dict[str, object] = {"pipeline": pipeline}
        if table:
            self._begun.add(table)
            done = event == "table_completed"
            self._read, self._rows = self._read + done, self._rows + rows * done
            many = len(self._begun) > TABLES_NAMED
            named = {**fields, "table": table, "rows": rows}
            level = logging.DEBUG if many else logging.INFO
            logger.log(level, "snapshot %s", event.replace("_", " "), extra=named)
            if many and time.monotonic() - self._tables_reported_at >= THROUGHPUT_EVERY_S:
                self._tables_reported_at = time.monotonic()
                total = max(len(self._status().captured_tables), len(self._begun))
                text = "snapshot progress: %s of %s tables are read"
                logger.info(text, self._read, total, extra={**fields, "rows": self._rows})
            return
        if event != "started" and self._begun:
            fields |= {"tables": self._read, "rows": self._rows}
        # a run can read several snapshots: the next one counts from zero
        self._begun, self._read, self._rows = set(), 0, 0
        logger.info("snapshot %s", event, extra=fields)

    @hookimpl
    def on_schema_change(self, pipeline: str, old: Relation | None, new: Relation) -> None:
        # without an old relation this is its first description, not a change
        if old is not None:
            fields = {"pipeline": pipeline, "table": new.name}
            logger.info("schema changed", extra=fields)

    @hookimpl
    def on_slot(self, pipeline: str, event: str, slot: str, lsn: int) -> None:
        fields = {"pipeline": pipeline, "slot": slot, "lsn": lsn_text(lsn)}
        # confirmations come with every flush: too many for INFO
        level = logging.DEBUG if event == "confirmed" else logging.INFO
        logger.log(level, "slot %s", event, extra=fields)

    @hookimpl
    def on_failure(self, pipeline: str, error: Exception, retried: bool) -> None:
        code = error.code if isinstance(error, WaltapError) else "WT-9000"
        text = error.problem if isinstance(error, WaltapError) else type(error).__name__
        logger.log(
            logging.WARNING if retried else logging.ERROR,
            "%s: %s",
            "failed, trying again" if retried else "failed",
            text,
            extra={"pipeline": pipeline, "error_code": code},
        )
