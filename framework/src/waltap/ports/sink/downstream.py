"""Report the progress of consumers that read a sink's output."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamTable:
    """The progress of one table."""

    table: str
    # LSN up to which the table is complete.
    lsn: int
    # Why the table is suspended, "" if it is not.
    failed: str = ""
    # Rows of the last batch; these numbers are None if unknown.
    batch_rows: int | None = None
    # Rows that wait for the table.
    waiting_rows: int | None = None
    # Age of the first waiting row's commit.
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamProgress:
    """One stage after the engine, such as Spark, or one of several sinks."""

    stage: str
    # End of the last complete transaction, 0 for none.
    lsn: int
    # WAL between that transaction and the last one that waits for the stage.
    lag_bytes: int | None
    # Whether the stage has everything.
    current: bool
    # Commit time of its last transaction at the source, ms since 1970 UTC; None if unknown.
    committed_ms: int | None = None
    # When that transaction was applied here.
    applied_ms: int | None = None
    tables: tuple[DownstreamTable, ...] = ()
    # Why the stage receives nothing now, "" if it does.
    problem: str = ""

    def lag_ms(self, now_ms: int) -> int | None:
        """Return how long ago the last applied transaction was committed.

        Return 0 if the stage is current, None if the time is unknown.
        """
        if self.current:
            return 0
        since = self.committed_ms or self.applied_ms
        return None if since is None else max(0, now_ms - since)
