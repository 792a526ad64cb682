"""Visibility of transactions in a snapshot, and their overlap with the stream.

A snapshot that is read with an older slot contains changes that the stream sends, too. So does a
table that is read later than the others. A commit's LSN alone cannot decide: its record may be
before the snapshot's LSN while the snapshot does not see the transaction yet.

Source: PostgreSQL manual, "Transaction ID and Snapshot Information Functions" (pg_snapshot's text
form ``xmin:xmax:xip,…``).
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from waltap.changes.decode.message import Change, LogicalMessage, Truncate
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import parse_lsn
from waltap.changes.transactions.transaction import TransactionPart

HALF = 1 << 31
XID_RANGE = 1 << 32
# The first ordinary id; lower ones mark frozen rows, which are older than every transaction.
FIRST_XID = 3


class SnapshotVisibility:
    """Describe which transactions a snapshot saw.

    All of them committed before the LSN ``horizon``. An ``xmax`` of 0 means a standby's snapshot, which
    saw every commit before the horizon.
    """

    def __init__(self, xmin: int, xmax: int, in_progress: frozenset[int], horizon: int) -> None:
        self.xmin, self.xmax, self.in_progress, self.horizon = xmin, xmax, in_progress, horizon

    @classmethod
    def parse(cls, text: str) -> "SnapshotVisibility | None":
        """Return the visibility of `Offset.visible_in`, None if empty."""
        if not text:
            return None
        snapshot, _, horizon = text.partition("@")
        if not snapshot:
            return cls(0, 0, frozenset(), parse_lsn(horizon))
        return cls.of_snapshot(snapshot, parse_lsn(horizon))

    @classmethod
    def of_snapshot(cls, text: str, horizon: int = 0) -> "SnapshotVisibility":
        """Return the visibility of a snapshot that the server printed."""
        xmin, xmax, in_progress = text.split(":")
        running = frozenset(int(xid) for xid in in_progress.split(",") if xid)
        return cls(int(xmin), int(xmax), running, horizon)

    def saw(self, xid: int) -> bool:
        """Return whether the snapshot saw the stream's 32-bit ``xid``."""
        # The nearest id has the missing upper bits.
        wide = (self.xmax & ~(XID_RANGE - 1)) | xid
        if wide > self.xmax + HALF:
            wide -= XID_RANGE
        elif wide < self.xmax - HALF:
            wide += XID_RANGE
        return wide < self.xmax and wide not in self.in_progress

    def contains(self, part: TransactionPart) -> bool:
        if part.xid is None:
            return False
        if not self.xmax:
            return bool(standby_saw(part.commit_lsn, self.horizon))
        return part.commit_lsn <= self.horizon and self.saw(part.xid)


def standby_saw(commit_lsn: int, replayed: int) -> bool | None:
    """Return True for a commit that a standby's snapshot saw, None for others.

    A standby does not know which transactions are in progress. It streams a transaction after it has
    replayed its commit. ``replayed`` is the end of the record that it had replayed before the snapshot.
    """
    # A commit's record begins at its LSN, which may be the end of the record replayed last.
    return True if commit_lsn < replayed else None


def changed_since(then: SnapshotVisibility, now: SnapshotVisibility) -> tuple[str, bool]:
    """Return the SQL condition that a row was written after ``then``.

    The row is visible ``now``, and a transaction that ``then`` did not see wrote it. The second value
    says whether the condition is certain for every row. A subtransaction of a transaction that was in
    progress then counts as seen.
    """
    # ``xmin`` has 32 bits of a 64-bit id. After a wrap-around, a very old row may look new.
    started = now.xmax - then.xmax
    xmin = "xmin::text::int8"
    terms = [f"(({xmin} - {then.xmax % XID_RANGE}) & {XID_RANGE - 1}) < {started}"]
    if then.in_progress:
        running = ",".join(str(xid % XID_RANGE) for xid in sorted(then.in_progress))
        terms.append(f"{xmin} = ANY('{{{running}}}'::int8[])")
    return f"({xmin} >= {FIRST_XID} AND ({' OR '.join(terms)}))", now.xmax <= XID_RANGE


class PostgresOverlap:
    """Drop changes of a stream that a snapshot already contains.

    They are changes of tables that it read, by transactions that it saw. Logical messages are in no
    snapshot, so all of them stay.
    """

    def __init__(self, tables: Sequence[tuple[SnapshotVisibility, Collection[str]]]) -> None:
        """Keep the visibilities of ``tables``.

        They are by OID and by schema.table, as in `PartitionOffset.visible_in`.
        """
        self._tables = tables
        self.horizon = max((seen.horizon for seen, _ in tables), default=0)

    @classmethod
    def parse(cls, visible_in: Mapping[str, str]) -> "PostgresOverlap | None":
        """Return the overlap of an offset, None without any."""
        # Thousands of tables are of one snapshot.
        names: dict[str, set[str]] = {}
        for name, text in visible_in.items():
            names.setdefault(text, set()).add(name)
        tables = [(seen, names[text]) for text in names if (seen := SnapshotVisibility.parse(text))]
        return cls(tables) if tables else None

    def filter(self, parts: list[TransactionPart]) -> list[TransactionPart]:
        """Return all ``parts`` without changes that the snapshot contains."""
        for part in parts:
            if part.xid is None or part.commit_lsn > self.horizon:
                continue
            if chosen := [names for seen, names in self._tables if seen.contains(part)]:
                _leave_out(part, chosen)
        return parts


def _leave_out(part: TransactionPart, names: Sequence[Collection[str]]) -> None:
    """Remove the changes of tables from a part.

    ``names`` are the tables of each snapshot.
    """
    remaining: list[Change] = []
    numbers: list[int] = []
    for number, change in zip(part.numbers(), part.changes, strict=True):
        stays = _without(change, names)
        if stays is not None:
            remaining.append(stays)
            numbers.append(number)
    rest = part.with_only(remaining, numbers)
    part.changes, part.gaps = rest.changes, rest.gaps


def _without(change: Change, names: Sequence[Collection[str]]) -> Change | None:
    """Return a change without the tables in ``names``, None if empty."""
    # A table with another OID that had the name before is removed, too: under that name the
    # destination has the rows of the snapshot.

    def among(relation: Relation) -> bool:
        return any(str(relation.oid) in some or relation.name in some for some in names)

    if isinstance(change, LogicalMessage):
        return change
    if isinstance(change, Truncate):
        remaining = tuple(relation for relation in change.relations if not among(relation))
        return msgspec.structs.replace(change, relations=remaining) if remaining else None
    return None if among(change.relation) else change
