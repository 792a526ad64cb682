"""What a run did, counted: for the one line at its end."""

import time

from waltap.source.position import lsn_text
from waltap.transactions.transaction import Batch, SnapshotRows, TransactionPart

__all__ = ["Tally"]


class Tally:
    """Counts what the sink took. Per batch, and per part of one."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._events = self._rows = self._transactions = self._lsn = 0

    def add(self, batch: Batch) -> None:
        """Count one batch."""
        self._events += batch.events
        self._lsn = batch.position.end_lsn or self._lsn
        for part in batch.parts:
            if isinstance(part, TransactionPart):
                self._transactions += part.complete and part.xid is not None
            elif isinstance(part, SnapshotRows):
                self._rows += len(part.rows)

    @property
    def empty(self) -> bool:
        """Tell whether the sink took nothing."""
        return not self._events

    def fields(self) -> dict[str, object]:
        """Return it as fields of a log line. ``lsn`` is where the last batch ended, if there was one."""
        return {
            "changes": self._events - self._rows,
            "snapshot_rows": self._rows,
            "transactions": self._transactions,
            "seconds": round(time.monotonic() - self._began, 1),
            **({"lsn": lsn_text(self._lsn)} if self._lsn else {}),
        }

    def line(self) -> str:
        """Return it in words."""
        found = self.fields()
        text = (
            f"{found['changes']:,} changes in {found['transactions']:,} transactions and "
            f"{found['snapshot_rows']:,} snapshot rows in {found['seconds']:,} s"
        )
        return f"{text}, up to {found['lsn']}" if "lsn" in found else text
