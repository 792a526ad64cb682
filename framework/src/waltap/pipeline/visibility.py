"""Which transactions a snapshot already contains, when it was read beside an older slot.

Source: PostgreSQL manual, "Transaction ID and Snapshot Information Functions" (pg_snapshot's text form
``xmin:xmax:xip,…``). A commit's LSN alone cannot decide: a commit record may stand before the
snapshot's LSN while the transaction was not yet visible to it.
"""

from waltap.events.transaction import TransactionPart
from waltap.source.position import parse_lsn

__all__ = ["Visibility"]

HALF = 1 << 31
WHOLE = 1 << 32


class Visibility:
    """Leaves out of a stream, up to ``horizon``, the transactions that the snapshot saw."""

    def __init__(self, xmin: int, xmax: int, in_progress: frozenset[int], horizon: int) -> None:
        self.xmin, self.xmax, self.in_progress, self.horizon = xmin, xmax, in_progress, horizon

    @classmethod
    def parse(cls, text: str) -> "Visibility | None":
        """Return what `Offset.visible` says, None when it is empty."""
        if not text:
            return None
        snapshot, _, horizon = text.partition("@")
        xmin, xmax, in_progress = snapshot.split(":")
        running = frozenset(int(xid) for xid in in_progress.split(",") if xid)
        return cls(int(xmin), int(xmax), running, parse_lsn(horizon))

    def saw(self, xid: int) -> bool:
        """Tell whether the 32-bit ``xid`` of the stream had committed in the snapshot's eyes."""
        wide = (self.xmax & ~(WHOLE - 1)) | xid
        if wide > self.xmax + HALF:
            wide -= WHOLE
        elif wide < self.xmax - HALF:
            wide += WHOLE
        return wide < self.xmax and wide not in self.in_progress

    def filter(self, parts: list[TransactionPart]) -> list[TransactionPart]:
        """Return ``parts`` with nothing in the transactions that the snapshot saw."""
        for part in parts:
            if part.xid is not None and part.commit_lsn <= self.horizon and self.saw(part.xid):
                part.wire_count = len(part.changes) if part.wire_count is None else part.wire_count
                part.changes = []
        return parts
