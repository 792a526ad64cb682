"""What the events of one part share: the source block, the stamps, the order in the transaction."""

from dataclasses import dataclass
from typing import Any

from waltap.transactions.order import TransactionOrder
from waltap.transactions.transaction import SnapshotRows, TransactionPart

__all__ = ["EventFrame"]


@dataclass(slots=True, kw_only=True, eq=False)
class EventFrame:
    """What the events of one part share."""

    part: TransactionPart | SnapshotRows
    source: dict[str, Any]
    stamps: dict[str, int]
    order: TransactionOrder | None
    out: list[Any]

    @property
    def ts(self) -> int:
        """Return when it was committed, or read, in µs since 1970 UTC."""
        part = self.part
        return part.ts if isinstance(part, SnapshotRows) else part.commit_ts

    def source_of(self, schema: str, table: str, lsn: int | None) -> dict[str, Any]:
        """Return the source block of an event."""
        source = {**self.source, "schema": schema, "table": table, "lsn": lsn}
        if source["sequence"][-1] == ",":
            source["sequence"] += f'"{lsn}"]'
        return source

    def block(self, lsn: int | None, collection: str) -> dict[str, Any] | None:
        """Return the transaction block of an event, which is counted."""
        if self.order is None:
            return None
        total, place = self.order.next(collection)
        assert isinstance(self.part, TransactionPart)
        return {
            "id": f"{self.part.xid}:{lsn}",
            "total_order": total,
            "data_collection_order": place,
        }
