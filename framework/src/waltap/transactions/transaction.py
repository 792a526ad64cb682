"""What moves between stages: parts of transactions, snapshot rows, and the batch that holds them."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from waltap.decode.message import Change
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple
from waltap.snapshot.progress import TableChunks
from waltap.source.position import SOLE, Position

if TYPE_CHECKING:
    from waltap.format.record import Record
    from waltap.notifications.notification import Notification

__all__ = ["Batch", "Heartbeat", "SnapshotRows", "TransactionPart", "events_in"]


class TransactionPart(msgspec.Struct, kw_only=True):
    """Changes of one committed transaction, in wire order; all of them unless the transaction is
    larger than a batch.

    ``first_index`` is the index of ``changes[0]`` in the transaction; ``starts`` and ``complete``
    tell whether its begin and its commit belong to this part. ``previous_end_lsn`` is the end LSN of
    the transaction (or non-transactional message) delivered before this one, None when none was
    since the very start: the first half of Debezium's ``source.sequence``. ``end_lsn`` is 0 until
    ``complete``. ``xmin`` is Debezium's ``source.xmin``, the oldest transaction that the slot keeps the
    catalogue for, as the server said last; None where nobody asked. A non-transactional logical message
    is a part of its own: ``xid`` None, one change. Times are µs since 1970 UTC.
    """

    xid: int | None
    begin_lsn: int
    commit_lsn: int
    commit_ts: int
    end_lsn: int = 0
    previous_end_lsn: int | None = None
    changes: list[Change]
    first_index: int = 0
    starts: bool = True
    complete: bool = True
    origin: str | None = None
    origin_lsn: int | None = None
    xmin: int | None = None
    gaps: Sequence[tuple[int, int]] = ()
    """Where changes of the wire were left out, ascending: (n, count) stood before ``changes[n]``, or
    behind the last one."""

    @property
    def wire_count(self) -> int:
        """Return how many changes of the wire this part stands for."""
        return len(self.changes) + sum(count for _, count in self.gaps)

    def numbers(self) -> Sequence[int]:
        """Return the number of each of ``changes`` in its transaction, from 0, as the wire has them.

        What was left out on the way keeps its number. So commit LSN and number name a change in every
        sink, whatever is filtered before it.
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

    def with_only(self, changes: list[Change], numbers: Iterable[int]) -> "TransactionPart":
        """Return the part with ``changes`` in place of its own: some of them, or what stands for some,
        with their ``numbers``, ascending. The others count as left out."""
        return msgspec.structs.replace(self, changes=changes, gaps=self.gaps_around(numbers))

    def gaps_around(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """Return the gaps of a part that has but the changes with these ``numbers``, ascending."""
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
        """Return the position after this part, given the one before it."""
        if self.complete:
            return Position(max(self.end_lsn, before.end_lsn))
        return Position(before.end_lsn, self.commit_lsn, self.first_index + self.wire_count)

    def split(self, count: int) -> "tuple[TransactionPart, TransactionPart]":
        """Return the first ``count`` changes, as an incomplete part, and the rest."""
        first = msgspec.structs.replace(
            self,
            changes=self.changes[:count],
            complete=False,
            end_lsn=0,
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


class SnapshotRows(msgspec.Struct, kw_only=True):
    """A piece of one table as a snapshot read it; each row is a full tuple.

    The contract of an initial snapshot between connector, engine and sinks (``kind`` "initial"):

    * The connector gives one piece or more of each table, those of a table one after the other, and
      says of the last one that the table is ``complete``. An empty table is one piece without rows.
    * The engine says of the very first piece that the snapshot ``opens``, and when every table has
      been delivered it writes a batch with ``snapshot`` and without parts: that, and nothing else, is
      the end of the snapshot. A snapshot of no tables is that batch alone.
    * For a sink a snapshot is one generation: its rows of a table, once complete, replace what the
      destination held of that table, without rows as well. A piece that opens begins a new
      generation, even when the last one did not end: what that delivered of tables that are not
      complete counts for nothing. A sink that only adds to a history may take pieces as they come.
    * A transform may take rows out of a piece, all of them too; it keeps the piece.
    * A snapshot that broke off goes on where the sink takes that
      (`SinkCapabilities.resumes_snapshots`): the first piece then does not open, the engine says of it
      that the snapshot ``goes_on``, tables that were complete do not come again, and of the others
      come the chunks that were not durable, each whole: rows may come twice, never with an older
      state. A chunk has the index that it had. Where a table cannot go on by chunks, a sink that takes
      that (`SinkCapabilities.restarts_tables`) gets it from its first row, cut anew, and the first
      piece ``restarts``: what came of the table in this snapshot counts for nothing. Elsewhere the
      snapshot is taken anew from its first table; rows may then have changed.

    ``first_marker`` and ``last_marker`` are Debezium's ``source.snapshot`` values of the first and
    the last row ("first", "first_in_data_collection", "true", "last_in_data_collection", "last",
    "incremental"); rows between have "true" ("incremental" for incremental snapshots). They are for
    consumers of records. Nothing follows from them: "last" is on the last row read, which more
    tables, empty ones, may follow; and a snapshot of empty tables has no marker at all.

    Rows of the other kinds, "incremental" and "blocking", come while tables are streamed: for a sink they
    are upserts. A blocking snapshot has the markers of an initial one; ``lsn``, ``xid`` and
    ``previous_end_lsn`` are those of the signal that asked for it.

    ``rows`` is a list of tuples, or, where many were read at once, a `RowBlock`: the same rows as columns
    of text. Whoever does not know columns takes it as the sequence of tuples that it is; who does makes
    the same of either form. A transform puts a list in its place, or a slice of it, or leaves it.

    ``visible`` is set, to what `Offset.visible_in` has, on pieces of a table whose changes the
    stream brings, too: the stream leaves out those that the rows contain.

    ``begins`` is set on the first piece of some tables: those, by identifier, whose reading begins with
    it. The engine keeps that before it delivers the piece, and keeps which chunks are durable: a start
    after a crash goes on with the others (`SnapshotProgress`).

    A connector may read a table in chunks, several at a time: ``chunk`` is the index of the piece's chunk,
    ``ends_chunk`` says that it is the last of that one. Pieces of a table's chunks come in any order; the
    very last is ``complete``. A chunk without rows is one piece without rows.

    ``elsewhere``: a table is complete whose rows came to nobody here. The sink had its chunks read by
    others (`Sink.hand_over`), and this is what that returned; the piece has no rows.

    ``ts`` is the instant the database gave when the table's scan began, µs since 1970 UTC. ``lsn``
    and ``xid`` are None for incremental rows. ``previous_end_lsn`` as in `TransactionPart`.
    """

    relation: Relation
    rows: Sequence[Tuple]
    ts: int
    lsn: int | None
    xid: int | None
    previous_end_lsn: int | None = None
    first_marker: str = "true"
    last_marker: str = "true"
    kind: str = "initial"
    visible: str = ""
    opens: bool = False
    complete: bool = False
    chunk: int = 0
    ends_chunk: bool = False
    goes_on: bool = False
    restarts: bool = False
    elsewhere: str = ""
    begins: dict[str, TableChunks] = {}


class Heartbeat(msgspec.Struct, kw_only=True):
    """A sign of life for consumers; ``ts`` in ms since 1970 UTC."""

    ts: int


class Batch(msgspec.Struct, kw_only=True):
    """The unit that moves. It ends at a transaction boundary unless the transaction is larger.

    ``position`` is the position after the last part, in ``partition``: all parts are of one, and where a
    source has only one it has no name. ``number`` grows from batch to batch of a run. ``records`` is
    filled for sinks that take records (`SinkCapabilities.records`): a list, or the sequence that a
    `RecordBlock` is; None for sinks that take changes. ``events`` counts the row changes, truncates,
    messages and snapshot rows in ``parts``. ``ends_transaction`` is False when the last part's transaction
    goes on in the next batch. ``snapshot``: it belongs to an initial snapshot; without parts it is the end
    of one (see `SnapshotRows`). ``told`` are notifications for a sink that renders them itself; a batch
    with them has nothing else. ``replays``: it is of a dead letter that is delivered after all, see
    `Sink.replayed`.
    """

    parts: list[TransactionPart | SnapshotRows | Heartbeat]
    position: Position
    partition: str = SOLE
    number: int = 0
    events: int
    records: "Sequence[Record] | None" = None
    ends_transaction: bool = True
    snapshot: bool = False
    told: "Sequence[Notification]" = ()
    replays: tuple[str, ...] = ()


def events_in(parts: Iterable[object]) -> int:
    """Return how many row changes, truncates, messages and snapshot rows there are: `Batch.events`."""
    return sum(
        len(part.changes) if isinstance(part, TransactionPart) else len(part.rows)
        for part in parts
        if isinstance(part, TransactionPart | SnapshotRows)
    )
