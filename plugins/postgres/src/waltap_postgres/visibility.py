"""Which transactions a snapshot already contains, when it was read beside an older slot, or a table of it
later than the rest.

Source: PostgreSQL manual, "Transaction ID and Snapshot Information Functions" (pg_snapshot's text form
``xmin:xmax:xip,…``). A commit's LSN alone cannot decide: a commit record may stand before the
snapshot's LSN while the transaction was not yet visible to it.
"""

from collections.abc import Mapping

import msgspec

from waltap.changes.decode.message import Change, LogicalMessage, Truncate
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import parse_lsn
from waltap.changes.transactions.transaction import TransactionPart

__all__ = ["PostgresOverlap", "SnapshotVisibility", "changed_since"]

HALF = 1 << 31
WHOLE = 1 << 32
FIRST_XID = 3
"""Those below mean that the row is as old as can be."""


class SnapshotVisibility:
    """Which transactions a snapshot saw; all of them committed before ``horizon``."""

    def __init__(self, xmin: int, xmax: int, in_progress: frozenset[int], horizon: int) -> None:
        self.xmin, self.xmax, self.in_progress, self.horizon = xmin, xmax, in_progress, horizon

    @classmethod
    def parse(cls, text: str) -> "SnapshotVisibility | None":
        """Return what `Offset.visible_in` says, None when it is empty."""
        if not text:
            return None
        snapshot, _, horizon = text.partition("@")
        return cls.of_snapshot(snapshot, parse_lsn(horizon))

    @classmethod
    def of_snapshot(cls, text: str, horizon: int = 0) -> "SnapshotVisibility":
        """Return what the snapshot saw that the server writes as ``text``."""
        xmin, xmax, in_progress = text.split(":")
        running = frozenset(int(xid) for xid in in_progress.split(",") if xid)
        return cls(int(xmin), int(xmax), running, horizon)

    def saw(self, xid: int) -> bool:
        """Tell whether the 32-bit ``xid`` of the stream had committed in the snapshot's eyes."""
        wide = (self.xmax & ~(WHOLE - 1)) | xid
        if wide > self.xmax + HALF:
            wide -= WHOLE
        elif wide < self.xmax - HALF:
            wide += WHOLE
        return wide < self.xmax and wide not in self.in_progress

    def contains(self, part: TransactionPart) -> bool:
        """Tell whether the snapshot saw the transaction of ``part``."""
        return part.xid is not None and part.commit_lsn <= self.horizon and self.saw(part.xid)


def changed_since(then: SnapshotVisibility, now: SnapshotVisibility) -> tuple[str, bool]:
    """Return the SQL condition that a row, visible ``now``, was written by a transaction that ``then`` did
    not see; and whether rows that it does not hold for are certain to be as they were then, and the others
    not.

    ``xmin`` is 32 bits of a number that has 64: a row of four thousand million transactions ago may look
    as if it were new. That cannot be where there were not as many yet. A subtransaction of one that was in
    progress then counts as seen.
    """
    started = now.xmax - then.xmax
    xmin = "xmin::text::int8"
    terms = [f"(({xmin} - {then.xmax % WHOLE}) & {WHOLE - 1}) < {started}"]
    if then.in_progress:
        running = ",".join(str(xid % WHOLE) for xid in sorted(then.in_progress))
        terms.append(f"{xmin} = ANY('{{{running}}}'::int8[])")
    return f"({xmin} >= {FIRST_XID} AND ({' OR '.join(terms)}))", now.xmax <= WHOLE


class PostgresOverlap:
    """Leaves out of a stream what a snapshot has read already: of the tables that it read, changes by
    transactions that it saw. Logical messages are in no snapshot: all of them stay."""

    def __init__(
        self, whole: SnapshotVisibility | None, tables: Mapping[str, SnapshotVisibility]
    ) -> None:
        """``tables``: by OID and by schema.table, as `Offset.visible_in`. ``whole``: of all tables."""
        self._whole, self._tables = whole, tables
        every = [*tables.values(), *([whole] if whole else [])]
        self.horizon = max((each.horizon for each in every), default=0)

    @classmethod
    def parse(cls, visible: str, visible_in: Mapping[str, str]) -> "PostgresOverlap | None":
        """Return what an offset says, None when it says nothing."""
        tables = {
            name: seen
            for name, text in visible_in.items()
            if (seen := SnapshotVisibility.parse(text))
        }
        whole = SnapshotVisibility.parse(visible)
        return cls(whole, tables) if whole or tables else None

    def filter(self, parts: list[TransactionPart]) -> list[TransactionPart]:
        """Return ``parts`` without the changes that the snapshot contains; no part is left out."""
        for part in parts:
            if part.xid is None or part.commit_lsn > self.horizon:
                continue
            if self._whole is not None and self._whole.contains(part):
                _leave_out(part, None)
            elif self._tables:
                names = {name for name, seen in self._tables.items() if seen.contains(part)}
                if names:
                    _leave_out(part, names)
        return parts


def _leave_out(part: TransactionPart, names: set[str] | None) -> None:
    """Take the changes of the tables in ``names``, None: of all, out of a part."""
    kept: list[Change] = []
    numbers: list[int] = []
    for number, change in zip(part.numbers(), part.changes, strict=True):
        stays = _without(change, names)
        if stays is not None:
            kept.append(stays)
            numbers.append(number)
    left = part.with_only(kept, numbers)
    part.changes, part.gaps = left.changes, left.gaps


def _without(change: Change, names: set[str] | None) -> Change | None:
    """Return a change without the tables in ``names``, None when nothing stays.

    A table of another number that had the name before is left out as well: what is at the destination
    under that name is what the snapshot read.
    """

    def among(relation: Relation) -> bool:
        return names is None or str(relation.oid) in names or relation.name in names

    if isinstance(change, LogicalMessage):
        return change
    if isinstance(change, Truncate):
        kept = tuple(relation for relation in change.relations if not among(relation))
        return msgspec.structs.replace(change, relations=kept) if kept else None
    return None if among(change.relation) else change
