"""The data that the events of one part share."""

from dataclasses import dataclass
from typing import Any

from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart

__all__ = ["EventFrame"]


@dataclass(slots=True, kw_only=True, eq=False)
class EventFrame:
    """Hold the data that the events of one part share."""

    part: TransactionPart | SnapshotRows
    # The source block without the members of a single event.
    source: dict[str, Any]
    # The creation time in ms, µs and ns.
    stamps: dict[str, int]
    # None where no transaction metadata is written.
    order: TransactionOrder | None
    # The list that gets the records.
    out: list[Any]

    @property
    def ts(self) -> int:
        """Return the commit or read time in µs since 1970 UTC."""
        part = self.part
        return part.ts if isinstance(part, SnapshotRows) else part.commit_ts

    def source_of(self, schema: str, table: str, lsn: int | None) -> dict[str, Any]:
        """Return the source block of an event."""
        source = {**self.source, "schema": schema, "table": table, "lsn": lsn}
        # A streamed event adds its own LSN; snapshot rows have a complete sequence.
        if source["sequence"][-1] == ",":
            source["sequence"] += f'"{lsn}"]'
        return source

    def block(self, lsn: int | None, collection: str) -> dict[str, Any] | None:
        """Count an event and return its transaction block."""
        if self.order is None:
            return None
        total, place = self.order.next(collection)
        assert isinstance(self.part, TransactionPart)
        return {
            "id": f"{self.part.xid}:{lsn}",
            "total_order": total,
            "data_collection_order": place,
        }
