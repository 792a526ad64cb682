"""Replay of operations against the database, faster than real time.

It measures when their changes arrive in Spark.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from waltap.changes.transactions.position import parse_lsn
from waltap_demo.operations import FlightOperation
from waltap_sinks.changelog import ChangeLog
from waltap_spark.output import SparkOutput

if TYPE_CHECKING:
    from psycopg import Connection
    from rich.console import Console

__all__ = ["OperationReplay", "ReplayProgress"]

LOOK_S: Final = 0.1
# Seconds between lines of progress.
TELL_S: Final = 5.0


class ReplayProgress:
    """Read the progress of change log and Spark from their files."""

    def __init__(self, lake: Path) -> None:
        self._log = ChangeLog(str(lake / "changelog"))
        self._output = SparkOutput(str(lake / "tables"))

    def logged_rows(self) -> int:
        """Return the number of rows in the change log."""
        return sum(manifest.rows for manifest in self._log.manifests())

    def applied_rows(self) -> int:
        """Return the number of rows that Spark has applied."""
        state = self._output.state()
        return 0 if state is None else state.rows_applied

    def applied_lsn(self) -> int:
        """Return the LSN that Spark's tables have reached."""
        state = self._output.state()
        return 0 if state is None else state.mark.end_lsn


class OperationReplay:
    """Execute operations as transactions.

    It counts them and measures their time until Spark has them.
    """

    def __init__(
        self, connection: "Connection[Any]", progress: ReplayProgress, console: "Console"
    ) -> None:
        self._connection, self._progress, self._console = connection, progress, console
        self.transactions = 0
        self.rows = 0
        self.kinds: Counter[str] = Counter()
        self._committed: list[tuple[int, float]] = []
        self._latencies: list[float] = []
        self._next_look = 0.0
        self._next_tell = time.monotonic() + TELL_S

    def play(self, events: Sequence[FlightOperation], seconds: float) -> None:
        """Execute ``events``, spread over ``seconds`` by their minute."""
        began = time.monotonic()
        first, last = events[0].minute, events[-1].minute
        for event in events:
            share = (event.minute - first) / max(1, last - first)
            while (left := began + share * seconds - time.monotonic()) > 0:
                # Short sleeps keep the measurement of latency going.
                time.sleep(min(left, LOOK_S))
                self._look(event)
            with self._connection.transaction():
                rows = event.act(self._connection)
                lsn = self._connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert lsn is not None
            self.transactions += 1
            self.rows += rows
            self.kinds[event.kind] += 1
            # A transaction without changes never arrives in Spark.
            if rows:
                self._committed.append((parse_lsn(str(lsn[0])), time.monotonic()))
            self._look(event)

    def caught_up(self) -> bool:
        """Return whether Spark has every replayed transaction."""
        self._measure()
        return not self._committed

    def latency(self) -> str:
        """Return the latency's median and 95th percentile as text.

        It is the time from commit to Spark table.
        """
        if not self._latencies:
            return "nothing measured"
        ordered = sorted(self._latencies)
        middle, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
        return f"{middle:.1f} s / {high:.1f} s"

    def _look(self, event: FlightOperation) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        self._measure()
        if now >= self._next_tell:
            self._next_tell = now + TELL_S
            clock = f"{event.minute // 60:02}:{event.minute % 60:02}"
            self._console.print(
                f"         {clock}  {self.transactions:,} transactions made, "
                f"{len(self._committed):,} not yet in Spark",
                style="dim",
            )

    def _measure(self) -> None:
        """Record the latency of transactions that have arrived."""
        lsn, now = self._progress.applied_lsn(), time.monotonic()
        arrived = 0
        for noted, committed in self._committed:
            # The LSN was read inside the transaction, so its commit record is after it and before
            # the next one's LSN. Tables beyond the LSN have the transaction.
            if noted >= lsn:
                break
            self._latencies.append(now - committed)
            arrived += 1
        del self._committed[:arrived]
