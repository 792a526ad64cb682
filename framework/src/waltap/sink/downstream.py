"""How far those have come who read on from a sink: what is between its data and the tables that people
see."""

from dataclasses import dataclass

__all__ = ["DownstreamProgress", "OnwardTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnwardTable:
    """One table: ``lsn``, up to which it has everything, and why it stands still, "" where it does not.

    ``batch_rows``: what it got with the last batch, ``waiting_rows``: what there is for it, ``lag_ms``:
    how long ago the first of those was committed; None where nobody knows.
    """

    table: str
    lsn: int
    failed: str = ""
    batch_rows: int | None = None
    waiting_rows: int | None = None
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamProgress:
    """One stage behind the engine, such as Spark behind the change log, or one of several sinks.

    ``lsn``: end of the last transaction that it has whole, 0 for none; ``lag_bytes``: how much WAL is
    between that and the last one that there is for it, ``current``: whether it has everything that there
    is. ``committed_ms``: when its last transaction was committed at the source, ``applied_ms`` when it was
    applied here, since 1970 UTC, None where nobody knows. ``tables``: of each where that is known.
    ``problem``: why it gets nothing now, "" where it does.
    """

    stage: str
    lsn: int
    lag_bytes: int | None
    current: bool
    committed_ms: int | None = None
    applied_ms: int | None = None
    tables: tuple[OnwardTable, ...] = ()
    problem: str = ""

    def lag_ms(self, now_ms: int) -> int | None:
        """Return how long ago the last transaction was committed that it has; 0 where it has everything,
        None where nobody knows."""
        if self.current:
            return 0
        since = self.committed_ms or self.applied_ms
        return None if since is None else max(0, now_ms - since)
