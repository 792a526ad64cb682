"""Record prepared transactions that were delivered at PREPARE.

The server sends only COMMIT PREPARED or ROLLBACK PREPARED for them afterwards, maybe to another
run under another policy. That run must know that their rows were delivered and are not lost. The
record ends when their fate is durable.
"""

from pathlib import Path

import msgspec

from waltap.offsets.durable_file import replace_durably

__all__ = ["EarlyDeliveries", "EarlyDelivery"]


class EarlyDelivery(msgspec.Struct, kw_only=True):
    """Describe one transaction that was delivered at PREPARE."""

    xid: int
    gid: str
    # The end of its PREPARE.
    end_lsn: int
    # The end of its COMMIT or ROLLBACK PREPARED; 0 before that.
    decided: int = 0


class EarlyDeliveries:
    """Keep a pipeline's early deliveries in a JSON file.

    They are in memory only where ``path`` is None. `keep` makes new records durable; it must
    return before a position that contains them is stored anywhere. Methods raise OSError, and
    `load` also the errors of UNREADABLE.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[tuple[int, str], EarlyDelivery] = {}
        self._kept = True

    def load(self, resume_lsn: int) -> None:
        """Read the records of an earlier run."""
        if self._path is None or not self._path.exists():
            return
        for entry in msgspec.json.decode(self._path.read_bytes(), type=list[EarlyDelivery]):
            # A PREPARE that ends after the position comes again; a decision that ends before it
            # does not.
            if entry.end_lsn <= resume_lsn and not 0 < entry.decided <= resume_lsn:
                self._entries[entry.xid, entry.gid] = entry

    def note(self, xid: int, gid: str, end_lsn: int) -> None:
        """Record a transaction that is delivered now.

        After a restart the server may send it, and this may record it, again.
        """
        self._entries[xid, gid] = EarlyDelivery(xid=xid, gid=gid, end_lsn=end_lsn)
        self._kept = False

    def decide(self, xid: int, gid: str, end_lsn: int) -> bool:
        """Record the decision at ``end_lsn``; return whether the entry exists."""
        entry = self._entries.get((xid, gid))
        if entry is None:
            return False
        entry.decided = end_lsn
        self._kept = False
        return True

    def undecided(self) -> list[str]:
        """Return the GIDs of undecided transactions, in order of delivery."""
        return [gid for (_, gid), entry in self._entries.items() if not entry.decided]

    def keep(self) -> None:
        """Make the records durable."""
        if self._path is None or self._kept:
            return
        entries = list(self._entries.values())
        replace_durably(self._path, msgspec.json.format(msgspec.json.encode(entries), indent=1))
        self._kept = True

    def passed(self, end_lsn: int) -> None:
        """Forget transactions whose decision is at or before ``end_lsn``.

        Everything up to ``end_lsn`` is durable.
        """
        if not self._entries:
            return
        over = [key for key, entry in self._entries.items() if 0 < entry.decided <= end_lsn]
        for key in over:
            del self._entries[key]
        # The last entry removes the file. Before that the file stays: `load` ignores decided
        # entries.
        if over and not self._entries and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._kept = True
