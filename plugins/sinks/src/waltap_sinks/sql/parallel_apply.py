"""Several connections that apply at once: slices of a batch, committed in the order of the source."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

from waltap.decode.message import Delete, Insert, LogicalMessage, Truncate, Update
from waltap.errors import WaltapError
from waltap.sink.sink import SinkContext
from waltap.transactions.transaction import SnapshotRows, TransactionPart
from waltap_sinks.sql.applier import SqlApplier
from waltap_sinks.sql.kinds import target_of
from waltap_sinks.sql.metadata import SinkMetadata
from waltap_sinks.sql.properties import SqlProperties
from waltap_sinks.sql.shape import TargetName
from waltap_sinks.sql.shapes import TargetShapes
from waltap_sinks.sql.tables import TargetTables
from waltap_sinks.sql.target import SqlTarget

__all__ = ["ParallelApply", "slices_of"]

log = logging.getLogger(__name__)

WORTH: Final = 64
"""Changes of a slice for which another connection is worth its commit."""

PATIENCE_MS: Final = 2_000
"""How long a lane waits for a lock: one that waits for a later lane would wait for ever."""

ALONE_FOR: Final = 64
"""How many batches one connection applies after lanes were in each other's way."""

Slice = list[TransactionPart]


@dataclass(slots=True)
class ApplyConnection:
    """A connection with what applies there."""

    target: SqlTarget
    books: SinkMetadata
    tables: TargetTables
    applier: SqlApplier

    def apply(self, parts: Slice) -> None:
        """Apply whole transactions; what comes of them waits to be committed."""
        self.target.begin()
        for part in parts:
            self.applier.add(part)
        self.applier.settle()

    def undo(self) -> None:
        """Undo what is not committed."""
        self.target.rollback()
        self.applier.forget()
        self.tables.forget()
        self.books.forget()


class ParallelApply:
    """Applies slices of a batch on connections of their own.

    A slice is some consecutive transactions, whole; no two slices touch the same row. They are applied
    at the same time, and committed in their order, each with its position: readers see what they see with
    one connection, states of the source. Whatever one of them fails with, those before it are in, and
    those from it on are undone: they are the caller's to apply, on one connection.
    """

    def __init__(
        self,
        properties: SqlProperties,
        context: SinkContext,
        shapes: TargetShapes,
        positions: TargetName,
    ) -> None:
        self._count = properties.connections
        lock_ms = min(PATIENCE_MS, properties.lock_timeout_ms)
        self._properties = properties.model_copy(update={"lock_timeout_ms": lock_ms})
        self._context, self._shapes, self._positions = context, shapes, positions
        self._lanes: list[ApplyConnection] = []
        self._pool: ThreadPoolExecutor | None = None
        self._alone = 0
        self._batches = self._shared = 0
        """How many batches came since the opening, and how many of them several connections applied."""

    def tell(self) -> None:
        """Log how often several connections applied a batch, and count anew."""
        if self._batches:
            log.info(
                "%d of %d batches were applied by several connections", self._shared, self._batches
            )
        self._batches = self._shared = 0

    def close(self) -> None:
        """Let go; what is not committed is undone. May be called twice."""
        if self._pool is not None:
            self._pool.shutdown()
        for lane in self._lanes:
            lane.undo()
            lane.target.close()
        self._lanes, self._pool = [], None

    def forget(self) -> None:
        """Look at the target anew: a table was made or altered."""
        for lane in self._lanes:
            lane.undo()

    def forget_relation(self, oid: int) -> None:
        """Drop what is kept of a relation that is gone."""
        for lane in self._lanes:
            lane.tables.forget_relation(oid)

    def cut(self, parts: Sequence[TransactionPart | SnapshotRows]) -> list[Slice]:
        """Return ``parts`` as slices, in order; [] where one connection is to apply them."""
        self._batches += 1
        if self._alone:
            self._alone -= 1
            return []
        whole = [part for part in parts if isinstance(part, TransactionPart)]
        if len(whole) < max(2, len(parts)):
            return []
        found = slices_of(whole, self._shapes, self._count)
        return found if len(found) > 1 else []

    def apply(
        self,
        slices: Sequence[Slice],
        books: SinkMetadata,
        commit: Callable[[ApplyConnection, Slice], None],
    ) -> int:
        """Apply ``slices`` at once; ``commit`` is called for each, in order. Return how many are in.

        Raises: what ``commit`` raises.
        """
        try:
            self._open(books)
        except Exception as error:
            if isinstance(error, WaltapError):
                raise
            log.warning("one connection applies, since no other could be made: %s", error)
            self._alone = ALONE_FOR
            self.close()
            return 0
        assert self._pool is not None
        lanes = self._lanes[: len(slices)]
        running: list[Future[None]] = [
            self._pool.submit(lane.apply, some) for lane, some in zip(lanes, slices, strict=True)
        ]
        done = 0
        try:
            for lane, some, future in zip(lanes, slices, running, strict=True):
                future.result()
                commit(lane, some)
                done += 1
        except Exception as error:
            if isinstance(error, WaltapError) and running[done].exception() is None:
                raise  # of a commit: it is fenced, or nobody here knows what became of it
            log.debug("one connection applies the rest of a batch", exc_info=error)
            self._alone = ALONE_FOR
        finally:
            if done < len(slices):
                wait(running)
                for lane in lanes[done:]:
                    lane.undo()
        if done < len(slices):
            self.close()  # a connection may be gone
        else:
            self._shared += 1
        return done

    def _open(self, opened: SinkMetadata) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="waltap-sql-lane")
        while len(self._lanes) < self._count:
            target = target_of(self._properties, self._context)
            books = SinkMetadata(target, self._positions, self._context.pipeline)
            tables = TargetTables(target, books, self._properties)
            applier = SqlApplier(
                target, tables, self._shapes, self._context.types, self._properties
            )
            self._lanes.append(ApplyConnection(target, books, tables, applier))
            target.open()
        for lane in self._lanes:
            lane.books.adopt(opened)


def slices_of(parts: Sequence[TransactionPart], shapes: TargetShapes, count: int) -> list[Slice]:
    """Cut transactions into at most ``count`` slices that share no row; [] where rows are not known."""
    total = sum(len(part.changes) for part in parts)
    if total <= WORTH:
        return []
    size = max(WORTH, -(-total // count))
    slices: list[Slice] = []
    weights: list[int] = []
    rows_of: list[set[Any]] = []
    at_of: dict[Any, int] = {}
    """Which slice touches a row. A row only ever goes to an earlier one: work grows with rows alone."""
    for part in parts:
        touched = _touched(part, shapes)
        if touched is None:
            return []
        if not slices or weights[-1] >= size:
            slices.append([])
            weights.append(0)
            rows_of.append(set())
        last = len(slices) - 1
        slices[last].append(part)
        weights[last] += len(part.changes)
        first = min((at_of.get(row, last) for row in touched), default=last)
        for row in touched:
            at_of[row] = last
        rows_of[last] |= touched
        if first < last:  # all from there on becomes one
            for later in range(first + 1, last + 1):
                slices[first] += slices[later]
                weights[first] += weights[later]
                rows_of[first] |= rows_of[later]
                at_of.update(dict.fromkeys(rows_of[later], first))
            del slices[first + 1 :], weights[first + 1 :], rows_of[first + 1 :]
    return slices


def _touched(part: TransactionPart, shapes: TargetShapes) -> set[Any] | None:
    """Return the rows that ``part`` touches, by table and key; None: not all are known by a key."""
    if not (part.starts and part.complete):
        return None
    found: set[Any] = set()
    for change in part.changes:
        if isinstance(change, LogicalMessage):
            continue
        if isinstance(change, Truncate):
            return None
        shape = shapes.of(change.relation)
        if shape is None:
            continue
        key_of, name = shape.key_of, shape.name
        if key_of is None:
            if isinstance(change, Insert):
                continue  # rows without a key are only added, unless one is changed
            return None
        if isinstance(change, Insert):
            found.add((name, key_of(change.new)))
        elif isinstance(change, Update):
            _before, row, old = shape.plan.update(change)
            found.add((name, key_of(row)))
            if old is not None:
                found.add((name, key_of(old)))
        else:
            assert isinstance(change, Delete)
            images = shape.plan.delete(change)
            if images is not None:
                found.add((name, key_of(images[1])))
    return found
