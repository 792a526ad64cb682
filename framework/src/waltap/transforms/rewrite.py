"""What transforms of columns are made of: an author says which columns, and what becomes of values.

    def stars(properties):
        def of_column(relation, column):
            if f"{relation.name}.{column.name}" in properties.columns:
                return lambda values: ["***"] * len(values)
        return rewrite_columns(of_column)

A batch is walked here, once, whatever the transform: parts keep their place, order and position.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from waltap.decode.message import Change, Delete, Insert, LogicalMessage, Truncate, Update
from waltap.decode.per_relation import PerRelation
from waltap.decode.relation import Column, Relation
from waltap.decode.tuple_image import Tuple, Value
from waltap.transactions.transaction import Batch, Heartbeat, SnapshotRows, TransactionPart

__all__ = ["Rewrite", "rewrite_columns", "with_relations"]

Rewrite = Callable[[Sequence[str | bytes]], Sequence[Value]]
"""Values of one column, as the server sent them, to as many values in their place."""

Part = TransactionPart | SnapshotRows | Heartbeat


def rewrite_columns(
    of_column: Callable[[Relation, Column], Rewrite | None],
) -> Callable[[Batch], Batch]:
    """Return a transform of batches that replaces values of some columns.

    ``of_column`` is asked once per column of a relation version, and gives what to do with its values,
    or None to leave the column alone. That is called with all values of the column in a part of a batch
    (a transaction's rows of one table, or the rows a snapshot read), old and new ones alike: PostgreSQL's
    text, or bytes where the decoder asked for the send format; in their order, NULL and what the server
    did not send left out: those stay what they are. It gives one value (text, bytes or None) for each.
    """
    return _ColumnValues(of_column)


class _ColumnValues:
    """Gathers the values of a column, has them replaced, and puts them back."""

    def __init__(self, of_column: Callable[[Relation, Column], Rewrite | None]) -> None:
        self._of_column = of_column
        self._chosen = PerRelation(self._choose)

    def __call__(self, batch: Batch) -> Batch:
        return msgspec.structs.replace(batch, parts=[self._part(part) for part in batch.parts])

    def _part(self, part: Part) -> Part:
        if isinstance(part, SnapshotRows):
            chosen = self._chosen.of(part.relation)
            if not chosen:
                return part
            return msgspec.structs.replace(part, rows=_rewritten(part.rows, chosen))
        if isinstance(part, Heartbeat):
            return part
        tables: dict[Relation, list[int]] = {}
        for index, change in enumerate(part.changes):
            if not isinstance(change, Truncate | LogicalMessage) and self._chosen.of(
                change.relation
            ):
                tables.setdefault(change.relation, []).append(index)
        if not tables:
            return part
        changes = list(part.changes)
        for relation, places in tables.items():
            self._rewrite(changes, places, self._chosen.of(relation))
        return msgspec.structs.replace(part, changes=changes)

    @staticmethod
    def _rewrite(
        changes: list[Change], places: list[int], chosen: tuple[tuple[int, Rewrite], ...]
    ) -> None:
        """Replace the changes at ``places``, all of one relation, by rewritten ones."""
        images = [image for place in places for image in _images(changes[place])]
        after = iter(_rewritten(images, chosen))
        for place in places:
            change = changes[place]
            if isinstance(change, Insert):
                changes[place] = msgspec.structs.replace(change, new=next(after))
            elif isinstance(change, Delete):
                changes[place] = msgspec.structs.replace(change, old=next(after))
            elif isinstance(change, Update):
                new, old = next(after), next(after)
                changes[place] = msgspec.structs.replace(change, new=new, old=old)

    def forget(self, oid: int) -> None:
        """Drop what is kept of a relation that is gone."""
        self._chosen.forget(oid)

    def _choose(self, relation: Relation) -> tuple[tuple[int, Rewrite], ...]:
        asked = [(at, self._of_column(relation, c)) for at, c in enumerate(relation.columns)]
        return tuple((at, rewrite) for at, rewrite in asked if rewrite is not None)


def _images(change: Change) -> tuple[Tuple, ...]:
    if isinstance(change, Insert):
        return (change.new,)
    if isinstance(change, Delete):
        return (change.old,)
    return (change.new, change.old) if isinstance(change, Update) else ()


def _rewritten(images: Sequence[Tuple], chosen: Iterable[tuple[int, Rewrite]]) -> list[Tuple]:
    """Return ``images``, of one relation, with the chosen columns' values replaced; empty ones stay."""
    rows = [list(image) for image in images]
    for at, rewrite in chosen:
        held = [row for row in rows if row and isinstance(row[at], str | bytes)]
        values = [row[at] for row in held]
        if values:
            for row, value in zip(held, rewrite(values), strict=True):  # type: ignore[arg-type]
                row[at] = value
    return [tuple(row) for row in rows]


def with_relations(replaced: Callable[[Relation], Relation]) -> Callable[[Batch], Batch]:
    """Return a transform of batches that goes on with other relations: another topic, for example.

    ``replaced`` is asked once per relation version, and gives one with as many columns, or the same.
    """
    return _RelationReplacer(replaced)


class _RelationReplacer:
    """Puts other relations in the place of those that changes and rows came with."""

    def __init__(self, replaced: Callable[[Relation], Relation]) -> None:
        self._known = PerRelation(replaced)

    def __call__(self, batch: Batch) -> Batch:
        of = self._known.of
        parts = [
            msgspec.structs.replace(part, changes=list(map(self._change, part.changes)))
            if isinstance(part, TransactionPart)
            else msgspec.structs.replace(part, relation=of(part.relation))
            if isinstance(part, SnapshotRows)
            else part
            for part in batch.parts
        ]
        return msgspec.structs.replace(batch, parts=parts)

    def forget(self, oid: int) -> None:
        """Drop what is kept of a relation that is gone."""
        self._known.forget(oid)

    def _change(self, given: Change) -> Change:
        if isinstance(given, LogicalMessage):
            return given
        of = self._known.of
        if isinstance(given, Truncate):
            return msgspec.structs.replace(given, relations=tuple(map(of, given.relations)))
        relation = of(given.relation)
        if relation is given.relation:
            return given
        if isinstance(given, Insert):
            return Insert(relation, given.lsn, given.new, given.xid)
        if isinstance(given, Update):
            return Update(relation, given.lsn, given.new, given.old, given.old_kind, given.xid)
        return Delete(relation, given.lsn, given.old, given.old_kind, given.xid)
