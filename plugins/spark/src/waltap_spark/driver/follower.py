"""Apply a change log to the tables as it grows.

New manifests are found by position, which costs the listing of one folder, however long the log
is. Spark's own file source was measured for comparison: it lists every file that it has ever
seen (206 ms a look at 7,200 manifests, 3.5 s at 100,000) and keeps a list of them.
"""

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from waltap.errors import WaltapError
from waltap_sinks.changelog import ChangeLog, Manifest
from waltap_sinks.changelog.errors import ChangeLogDamaged
from waltap_sinks.changelog.manifest import bucket_of
from waltap_spark.apply.applier import OutputApplier
from waltap_spark.config.properties import SparkProperties
from waltap_spark.driver.batch_size import AdaptiveBatchSize
from waltap_spark.errors import OutputMismatch, RowsAwaited, TablesSuspended
from waltap_spark.state.output import applied_by_all

log = logging.getLogger(__name__)

EXPIRE_EVERY_S: Final = 60.0
# A stop may come during the wait for changes.
STOP_S: Final = 0.2


class LogFollower:
    """Applies a growing change log until it is stopped. Single-threaded."""

    def __init__(
        self,
        changelog: ChangeLog,
        applier: OutputApplier,
        properties: SparkProperties | None = None,
    ) -> None:
        self._log, self._applier = changelog, applier
        self._properties = own = properties or SparkProperties(path=applier.location)
        self._pace = AdaptiveBatchSize(own.batch_ms / 1000, own.batch_rows)
        self._next_expiry = time.monotonic() + EXPIRE_EVERY_S

    def follow(self, stopping: Callable[[], bool]) -> None:
        """Apply until ``stopping`` returns true, then once more.

        Raises: TablesSuspended at the end, when some tables are suspended; other errors
        immediately, with the tables at their last commit.
        """
        self._applier.keep_up()
        while True:
            last_time = stopping()
            self.catch_up()
            if last_time:
                self._complain()
                return
            self.expire()
            due = time.monotonic() + self._properties.trigger_ms / 1000
            while (remaining := due - time.monotonic()) > 0 and not stopping():
                time.sleep(min(remaining, STOP_S))

    def once(self) -> None:
        """Apply the log's present changes, and maintain the tables.

        This serves a driver that a scheduler starts again and again. Raises: as `follow`.
        """
        self.catch_up()
        self._applier.maintain(patient=True)
        try:
            self._applier.collect()
        except WaltapError as error:
            log.warning("collecting failed", extra={"error_code": error.code})
        self.expire(at_once=True)
        self._complain()

    def _complain(self) -> None:
        failed = {n: each.failed for n, each in self._applier.state.tables.items() if each.failed}
        if failed:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
            raise TablesSuspended(f"not applied: {reasons}", output=self._applier.location)

    def catch_up(self) -> None:
        """Apply the manifests that the log holds now.

        Raises: ChangeLogDamaged, after everything before the damage is applied; the applier's
        errors.
        """
        damaged: list[WaltapError] = []
        try:
            self._apply(self._manifests(damaged))
        except RowsAwaited as awaited:
            if awaited.fields["nobody"]:
                raise
            return  # an engine assigns the rows later, or the next engine takes another snapshot
        for error in damaged:
            log_position = self._applier.state.log_position
            log.error(
                "all tables are at %s, before the damage: the tables of its rows are unknown",
                log_position,
            )
            raise error

    def _apply(self, manifests: Iterable[Manifest]) -> None:
        found = 0
        for portion in self._pace.portions(manifests):
            started = time.monotonic()
            self._applier.apply(portion)
            self._pace.took(time.monotonic() - started)
            found += len(portion)
        if not found:
            self._applier.apply([])  # retries suspended tables, commits compactions

    def _manifests(self, damaged: list[WaltapError]) -> Iterator[Manifest]:
        """Yield manifests up to the first damaged or missing one.

        The damage goes to ``damaged``, so that the manifests before it are applied first.
        """
        try:
            yield from self._log.manifests(self._applier.state.log_position)
        except ChangeLogDamaged as error:
            damaged.append(error)

    def expire(self, *, at_once: bool = False) -> None:
        """Remove old applied changes from the change log.

        Without ``at_once`` it does so once in `EXPIRE_EVERY_S`. Raises: OutputMismatch.
        """
        now = time.monotonic()
        if now < self._next_expiry and not at_once:
            return
        self._next_expiry = now + EXPIRE_EVERY_S
        state = self._applier.state
        self._require_same_log()
        if any(table.staged for table in state.tables.values()):
            return  # an unfinished snapshot still needs its segments in the log
        limit = dt.datetime.now(dt.UTC) - dt.timedelta(hours=self._properties.retention_hours)
        try:
            self._log.expire(applied_by_all(state), bucket_of(limit))
        except WaltapError as error:
            log.warning("retiring failed", extra={"error_code": error.code})

    def _require_same_log(self) -> None:
        """Check that no other log is in the place. Raises: OutputMismatch."""
        state, place = self._applier.state, self._log.store.location
        try:
            found = self._log.identity()
        except WaltapError as error:
            log.warning("the id of %s cannot be read: %s", place, error)
            return
        if state.log_id and found != state.log_id:
            # Its LSNs may be lower: it would be taken for applied, and removed.
            raise OutputMismatch(
                f"another change log is in {place} than the tables were made from",
                output=self._applier.location,
                changelog=place,
            )
