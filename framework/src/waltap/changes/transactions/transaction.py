"""Transaction parts, snapshot rows and batches that stages exchange."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from waltap.changes.decode.message import Change, TransactionBlock
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.row_block import LazySequence
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.position import SOLE, Position, TableChunks

if TYPE_CHECKING:
    from waltap.changes.events.event import Record


class TransactionPart(msgspec.Struct, kw_only=True):
    """Carry changes of one committed transaction, in wire order.

    A part has all changes unless the transaction is larger than a batch. A non-transactional
    logical message is a part by itself: ``xid`` None, one change. Times are µs since 1970 UTC.
    """

    xid: int | None
    begin_lsn: int
    commit_lsn: int
    commit_ts: int
    # 0 until `complete`.
    end_lsn: int = 0
    # End LSN of the transaction or non-transactional message delivered before, None if there was
    # none since the very start: the first half of Debezium's `source.sequence`.
    previous_end_lsn: int | None = None
    # A list or an `InsertBlock`, which is a sequence of inserts for readers that know no columns.
    changes: Sequence[Change]
    # The index of `changes[0]` in the transaction.
    first_index: int = 0
    # The transaction's begin belongs to this part.
    starts: bool = True
    # The transaction's commit belongs to this part.
    complete: bool = True
    origin: str | None = None
    origin_lsn: int | None = None
    # Debezium's `source.xmin`: the oldest transaction that the slot keeps the catalogue for, by
    # the server's last answer; None where the connector does not ask.
    xmin: int | None = None
    # Changes of the wire that were left out, ascending: (n, count) before `changes[n]`, or after
    # the last one.
    gaps: Sequence[tuple[int, int]] = ()

    @property
    def wire_count(self) -> int:
        """Return the number of wire changes that this part covers."""
        return len(self.changes) + sum(count for _, count in self.gaps)

    def numbers(self) -> Sequence[int]:
        """Return each change's number in its transaction, from 0.

        Changes that were left out keep their number. So commit LSN and number identify a change
        in every sink, whatever is filtered before it.
        """
        if not self.gaps:
            return range(self.first_index, self.first_index + len(self.changes))
        left_out = dict(self.gaps)
        found, number = [], self.first_index
        for at in range(len(self.changes)):
            number += left_out.get(at, 0)
            found.append(number)
            number += 1
        return found

    def with_only(self, changes: Sequence[Change], numbers: Iterable[int]) -> "TransactionPart":
        """Return the part with ``changes`` instead of its own.

        They are some of its changes, or replacements for some, with their ``numbers``, ascending.
        The other changes count as left out.
        """
        return msgspec.structs.replace(self, changes=changes, gaps=self.gaps_around(numbers))

    def gaps_around(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """Return the gaps around the changes of ``numbers``.

        ``numbers`` is ascending.
        """
        gaps: list[tuple[int, int]] = []
        at, due = 0, self.first_index
        for at, number in enumerate(numbers, 1):
            if number > due:
                gaps.append((at - 1, number - due))
            due = number + 1
        end = self.first_index + self.wire_count
        if end > due:
            gaps.append((at, end - due))
        return gaps

    def position(self, before: Position) -> Position:
        if self.complete:
            # The position never moves back.
            return Position(max(self.end_lsn, before.end_lsn))
        return Position(before.end_lsn, self.commit_lsn, self.first_index + self.wire_count)

    def split(self, count: int) -> "tuple[TransactionPart, TransactionPart]":
        """Split into ``count`` changes, an incomplete part, and the rest."""
        first = msgspec.structs.replace(
            self,
            changes=self.changes[:count],
            complete=False,
            end_lsn=0,
            # A gap right at the split belongs to the first half, so that no number is counted
            # twice.
            gaps=[gap for gap in self.gaps if gap[0] <= count],
        )
        rest = msgspec.structs.replace(
            self,
            changes=self.changes[count:],
            first_index=self.first_index + first.wire_count,
            starts=False,
            gaps=[(at - count, left_out) for at, left_out in self.gaps if at > count],
        )
        return first, rest


class TransactionRun(LazySequence[TransactionPart]):
    """Hold neighbouring transactions of one insert each as columns.

    A run is a sequence of parts for readers that know no columns. ``previous_end_lsn`` belongs to
    the first transaction.
    """

    __slots__ = ("block", "previous_end_lsn")

    def __init__(self, block: TransactionBlock, previous_end_lsn: int | None) -> None:
        super().__init__()
        self.block, self.previous_end_lsn = block, previous_end_lsn

    def __len__(self) -> int:
        return len(self.block)

    def _part(self, start: int, stop: int) -> Sequence[TransactionPart] | None:
        # Parts that exist stay the same objects, as the inserts of an `InsertBlock`.
        if self._items is not None:
            return None
        return TransactionRun(self.block.part(slice(start, stop)), self.previous(start))

    def previous(self, index: int) -> int | None:
        """Return `TransactionPart.previous_end_lsn` of one transaction."""
        return int(self.block.end_lsns[index - 1]) if index else self.previous_end_lsn

    @property
    def last(self) -> TransactionPart:
        """Return the last transaction without its change."""
        return self._at(len(self) - 1, ())

    def _at(self, index: int, changes: Sequence[Change]) -> TransactionPart:
        block = self.block
        return TransactionPart(
            xid=int(block.xids[index]),
            begin_lsn=int(block.frames[0][index]),
            commit_lsn=int(block.commit_lsns[index]),
            commit_ts=int(block.commit_ts[index]),
            end_lsn=int(block.end_lsns[index]),
            previous_end_lsn=self.previous(index),
            changes=changes,
        )

    def _make(self) -> list[TransactionPart]:
        return [self._at(at, [insert]) for at, insert in enumerate(self.block.inserts)]


class SnapshotRows(msgspec.Struct, kw_only=True):
    """Carry a piece of one table from a snapshot.

    Each row is a full tuple. The contract of an initial snapshot between connector, engine and
    sinks (``kind`` "initial"):

    * The connector gives at least one piece of each table, the pieces of a table one after the
      other. Its last piece is ``complete``. An empty table is one piece without rows.
    * The very first piece ``opens`` the snapshot. When every table has been delivered, the engine
      writes a batch with ``snapshot`` and without parts. Only that batch ends the snapshot. A
      snapshot of no tables is that batch alone.
    * For a sink a snapshot is one unit. Its complete rows of a table replace all rows of that
      table in the destination, also when there are none. A piece that opens begins a new snapshot,
      even when the last one did not end: the sink discards the last one's incomplete tables. A sink
      that only appends to a history may take pieces as they come.
    * A transform may remove rows from a piece, even all of them; it keeps the piece.
    * An interrupted snapshot continues where the sink allows it
      (`SinkCapabilities.resumes_snapshots`). The first piece is then ``resumed`` instead of opening.
      Complete tables do not come again. Of the other tables come the chunks that were not durable,
      each from its first row: rows may come twice, never in an older state. A chunk keeps its index.
    * A table that cannot continue by chunks comes from its first row, in new chunks, to a sink that
      allows it (`SinkCapabilities.restarts_tables`). Its first piece ``restarts``: the sink discards
      all earlier rows of the table in this snapshot. For other sinks the snapshot starts over with
      its first table; rows may have changed since.

    Rows of the other kinds, "incremental" and "blocking", come while tables are streamed: for a
    sink they are upserts. A blocking snapshot has the markers of an initial one; its ``lsn``,
    ``xid`` and ``previous_end_lsn`` are copied from the signal that requested it. Where it reads
    all rows of a table (``all_rows``), a sink may replace those that it has: the first piece of such
    a table ``restarts``, the last one is ``complete``.

    A connector may read several chunks of a table at a time. Pieces of different chunks come in
    any order; the very last one is ``complete``. A chunk without rows is one piece without rows.
    """

    relation: Relation
    # A list of tuples or, where many were read at once, a `RowBlock`: the same rows as columns of
    # text. It is a sequence of tuples for readers that know no columns; readers that do make the
    # same result of either form. A transform replaces it by a list or a slice, or leaves it.
    rows: Sequence[Tuple]
    # The database's clock when the scan of the table began, µs since 1970 UTC.
    ts: int
    # None for incremental rows, as is `xid`.
    lsn: int | None
    xid: int | None
    # As in `TransactionPart`.
    previous_end_lsn: int | None = None
    # Debezium's `source.snapshot` of the first row: "first", "first_in_data_collection", "true",
    # "last_in_data_collection", "last" or "incremental". Rows between the first and the last have
    # "true" ("incremental" for incremental snapshots). Markers are only for consumers of records:
    # empty tables may follow the "last" row, and a snapshot of empty tables has none.
    first_marker: str = "true"
    # The same of the last row.
    last_marker: str = "true"
    kind: str = "initial"
    # `Offset.visible_in`, on pieces of a table that is streamed, too: the stream leaves out the
    # changes that the rows contain.
    visible: str = ""
    opens: bool = False
    complete: bool = False
    # The index of the piece's chunk.
    chunk: int = 0
    # This is the chunk's last piece.
    ends_chunk: bool = False
    resumed: bool = False
    restarts: bool = False
    # A blocking snapshot reads all rows of the table, and not those that a signal's SELECT chooses: a
    # sink may replace its rows by them.
    all_rows: bool = False
    # The table is complete, and other readers had its rows: the sink assigned its chunks to them.
    # This is the result of `SplitReadingSink.assign_splits`; the piece has no rows.
    external_snapshot: str = ""
    # The tables, by identifier, whose reading begins with this piece. The engine stores that
    # before it delivers the piece, and then stores the durable chunks: a start after a crash
    # continues with the others (`SnapshotProgress`).
    begins: dict[str, TableChunks] = {}


class Heartbeat(msgspec.Struct, kw_only=True):
    """Send a sign of life to consumers."""

    # In ms since 1970 UTC.
    ts: int


class Batch(msgspec.Struct, kw_only=True):
    """Carry the parts that move through the stages together.

    A batch ends at a transaction boundary unless the transaction is larger.
    """

    # A list or a `TransactionRun`, which is a sequence of parts for readers that know no columns.
    parts: "Sequence[Part]"
    # The position after the last part, in `partition`.
    position: Position
    # All parts are of one partition; it has no name where a source has only one.
    partition: str = SOLE
    # Grows from batch to batch of a run.
    number: int = 0
    # The row changes, truncates, messages and snapshot rows in `parts`.
    events: int
    # For sinks that take records (`SinkCapabilities.records`): a list, `RecordBlock` or
    # `MixedRecords`. None for sinks that take changes.
    records: "Sequence[Record] | None" = None
    # The batch belongs to an initial snapshot; without parts it ends the snapshot (see
    # `SnapshotRows`).
    snapshot: bool = False
    # The dead letter that this batch delivers after all, see `RedeliveryAwareSink.redelivered`.
    redelivers: tuple[str, ...] = ()

    @property
    def ends_transaction(self) -> bool:
        """Return whether no transaction continues in the next batch.

        A redelivery is complete by itself, also where the stream stopped inside a transaction.
        """
        return not self.position.commit_lsn or bool(self.redelivers)


def events_in(parts: Iterable[object]) -> int:
    """Return the number of events in ``parts``, for `Batch.events`.

    Events are row changes, truncates, messages and snapshot rows.
    """
    events = 0
    if isinstance(parts, TransactionRun):
        return len(parts)
    for part in parts:
        if type(part) is TransactionPart:
            events += len(part.changes)
        elif type(part) is SnapshotRows:
            events += len(part.rows)
    return events


Part = TransactionPart | SnapshotRows | Heartbeat
_end_lsn = attrgetter("end_lsn")


def transactions_in(parts: Sequence[Part]) -> Sequence[TransactionPart]:
    """Return the parts of transactions among ``parts``."""
    if isinstance(parts, TransactionRun):
        return parts
    # Mostly all of them are, which a pass in C finds.
    if set(map(type, parts)) <= {TransactionPart}:
        return parts  # type: ignore[return-value]
    return [part for part in parts if type(part) is TransactionPart]


def position_after(parts: Sequence[TransactionPart], before: Position) -> Position:
    """Return the position after ``parts``, given the one before the first."""
    if not parts:
        return before
    if isinstance(parts, TransactionRun):
        return Position(max(parts.block.end_lsn, before.end_lsn))
    # An incomplete part has no end; a transaction may end before an earlier one (`two_phase_at`).
    end_lsn = max(map(_end_lsn, parts))
    return parts[-1].position(Position(max(before.end_lsn, end_lsn)))


def remaining(parts: Iterable[Part], delivered: Position) -> list[Part]:
    """Return the parts that a destination at position ``delivered`` lacks.

    They are the transactions after the position, and the rest of the transaction that the
    position is within.
    """
    missing: list[Part] = []
    for part in parts:
        # Rows of snapshots stay: an incremental snapshot is read again after a restart, and its
        # rows then come after everything that any destination has.
        if not isinstance(part, TransactionPart):
            missing.append(part)
        elif delivered.index and part.commit_lsn == delivered.commit_lsn:
            rest = _behind(part, delivered.index)
            if rest is not None:
                missing.append(rest)
        elif (
            part.end_lsn > delivered.end_lsn
            if part.complete
            else part.commit_lsn >= delivered.end_lsn
        ):
            missing.append(part)
    return missing


def undelivered(batch: Batch, delivered: Position) -> Batch:
    """Return ``batch`` without the changes that a destination at ``delivered`` has.

    Without changes, as a heartbeat, it has that position if it is later: the destination must not
    store an older one.
    """
    parts = remaining(batch.parts, delivered)
    changed = transactions_in(parts)
    # Changes move that position on, also where the batch counts from an earlier one.
    position = position_after(changed, delivered) if changed else max(delivered, batch.position)
    return msgspec.structs.replace(batch, parts=parts, position=position, events=events_in(parts))


def within(batch: Batch, begin: Position, end: Position) -> Batch:
    """Return ``batch`` with the changes from ``begin`` to ``end`` of one transaction.

    It is the one that ``end`` is within.
    """
    parts = [
        part.split(bisect_left(part.numbers(), end.index))[0]
        for part in transactions_in(remaining(batch.parts, begin))
        if part.commit_lsn == end.commit_lsn and part.first_index < end.index
    ]
    return msgspec.structs.replace(batch, parts=parts, events=events_in(parts))


def _behind(part: TransactionPart, index: int) -> TransactionPart | None:
    """Return ``part`` without the changes numbered below ``index``.

    None means that no change remains.
    """
    if index <= part.first_index:
        return part
    if index >= part.first_index + part.wire_count and not part.complete:
        return None
    return part.split(bisect_left(part.numbers(), index))[1]


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """One notification about the state of a pipeline."""

    # the signal's id for an incremental snapshot, else a random UUID
    identifier: str
    # such as "Initial Snapshot" or "Incremental Snapshot"
    aggregate_type: str
    # Debezium's ``type``: STARTED, IN_PROGRESS, COMPLETED and so on
    kind: str
    additional_data: dict[str, str] | None = None
    # ms since 1970 UTC
    timestamp: int = 0

    def document(self) -> dict[str, object]:
        """Return the members with Debezium's names and order."""
        return {
            "id": self.identifier,
            "type": self.kind,
            "aggregate_type": self.aggregate_type,
            "additional_data": self.additional_data,
            "timestamp": self.timestamp,
        }
