"""Prepared transactions that were delivered at PREPARE, until their fate is known and durable.

The server sends of them nothing more than COMMIT PREPARED or ROLLBACK PREPARED, maybe in another run and
under another policy: who decodes that must know that the rows were delivered, and are not lost.
"""

from pathlib import Path

import msgspec

from waltap.offsets.durable_file import replace_durably

__all__ = ["EarlyDeliveries", "EarlyDelivery"]


class EarlyDelivery(msgspec.Struct, kw_only=True):
    """One of them. ``end_lsn``: the end of its PREPARE; ``decided``: the end of what decided on it, 0
    before that."""

    xid: int
    gid: str
    end_lsn: int
    decided: int = 0


class EarlyDeliveries:
    """Those of one pipeline, in a JSON file; in memory only where ``path`` is None.

    What is noted becomes durable by `keep`, which must return before a position that contains it is
    stored anywhere. Methods raise OSError, and the first `load` those of UNREADABLE.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[tuple[int, str], EarlyDelivery] = {}
        self._kept = True

    def load(self, resume_lsn: int) -> None:
        """Read what an earlier run kept. A PREPARE that ends after ``resume_lsn`` comes again, and a
        decision that ends there or before does not."""
        if self._path is None or not self._path.exists():
            return
        for entry in msgspec.json.decode(self._path.read_bytes(), type=list[EarlyDelivery]):
            if entry.end_lsn <= resume_lsn and not 0 < entry.decided <= resume_lsn:
                self._entries[entry.xid, entry.gid] = entry

    def note(self, xid: int, gid: str, end_lsn: int) -> None:
        """Note a transaction that is delivered now; it may be sent, and noted, again."""
        self._entries[xid, gid] = EarlyDelivery(xid=xid, gid=gid, end_lsn=end_lsn)
        self._kept = False

    def decide(self, xid: int, gid: str, end_lsn: int) -> bool:
        """Note that its fate is known up to ``end_lsn``; tell whether it is one of them."""
        entry = self._entries.get((xid, gid))
        if entry is None:
            return False
        entry.decided = end_lsn
        self._kept = False
        return True

    def undecided(self) -> list[str]:
        """Return the GIDs of those whose fate is not known yet, in the order of delivery."""
        return [gid for (_, gid), entry in self._entries.items() if not entry.decided]

    def keep(self) -> None:
        """Make durable what has been noted, also where the file was deleted."""
        if self._path is None or (self._kept and (not self._entries or self._path.exists())):
            return
        entries = list(self._entries.values())
        replace_durably(self._path, msgspec.json.format(msgspec.json.encode(entries), indent=1))
        self._kept = True

    def passed(self, end_lsn: int) -> None:
        """Forget those whose decision is durable, as everything up to ``end_lsn`` is.

        The last one takes the file with it; others leave it as it is, since `load` passes over them.
        """
        if not self._entries:
            return
        over = [key for key, entry in self._entries.items() if 0 < entry.decided <= end_lsn]
        for key in over:
            del self._entries[key]
        if over and not self._entries and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._kept = True
