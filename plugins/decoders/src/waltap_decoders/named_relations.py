"""Relations for plugins that name columns in every row and announce nothing: wal2json, decoderbufs.

Such a plugin tells names and type OIDs of the columns it sends, no OID of the table, no replica
identity, and it leaves out values. What is missing is concluded (`row_facts`). A relation is made
anew only when its shape changed, so that a stable table keeps one `Relation` object.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass

import msgspec

from waltap.decode.decoder import DecoderContext
from waltap.decode.message import Begin, Message, OldTuple
from waltap.decode.relation import Column, Relation
from waltap.decode.tuple_image import ABSENT, UNCHANGED, Tuple, Value
from waltap_decoders.retirement import RelationRetirement
from waltap_decoders.row_facts import (
    ColumnFact,
    OldRowColumns,
    RowFacts,
    columns_then,
    identity_then,
    numbers_then,
)

__all__ = ["UNKNOWN_KEPT", "NamedRelations", "RowLayout"]

UNKNOWN_KEPT = 256
"""Tables that are kept without an OID: they were gone when the catalogue was asked, so that nobody can be
asked whether they are."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How rows of one make-up become tuples of ``relation``.

    ``new`` and ``old`` give, per column of the relation, the index of its value in the row, -1 where
    the row has none; what stands there then is UNCHANGED in a new tuple and ``fill`` in an old one.
    ``complete``: the row names every column of the table. ``replaces``: ``relation`` is another than
    the table's last, and no layout made before holds for it any more. ``unset`` and ``set``: indexes
    of old values that are NULL, and that are not, in every row of this replica identity.
    """

    relation: Relation
    new: tuple[int, ...]
    old: tuple[int, ...]
    old_kind: OldTuple
    fill: tuple[Value, ...]
    complete: bool
    replaces: bool
    unset: tuple[int, ...]
    set: tuple[int, ...]

    def new_tuple(self, values: list[Value]) -> Tuple:
        """Return the new tuple of a row with these values, in the row's order."""
        return tuple([values[i] if i >= 0 else UNCHANGED for i in self.new])

    def old_tuple(self, values: list[Value]) -> Tuple:
        """Return the old tuple of a row with these old values, in the row's order."""
        return tuple([values[i] if i >= 0 else f for i, f in zip(self.old, self.fill, strict=True)])

    def key_is_same(self, new: Tuple, old: Tuple) -> bool:
        """Tell whether every value of a key-only old tuple stands in the new one, too."""
        pairs = zip(self.old, new, old, strict=True)
        return all(after == before for i, after, before in pairs if i >= 0)

    def holds(self, values: list[Value]) -> bool:
        """Tell whether old values can be of this layout's replica identity."""
        for i in self.unset:
            if values[i] is not None:
                return False
        return all(values[i] is not None for i in self.set)


@dataclass(slots=True)
class _NamedVersion:
    """A table at one point of the stream: as the rows show it, and completed from the catalogue.

    ``epoch``: the last one in which rows showed all of it. ``full``: the last old row was a full one.
    ``standing`` is what stood for the name when the catalogue was asked, ``turn`` when that was compared
    last, ``doubted``: it is another by now.
    """

    shown: Relation
    relation: Relation
    epoch: int
    full: bool = False
    standing: Hashable = None
    turn: int = 0
    doubted: bool = False


class NamedRelations:
    """The tables of one session. Asks the catalogue once per make-up of rows, never per row.

    Of ``context``, its catalogue, ``captures``, ``describe``, ``relation_at`` and ``standings`` are used.
    ``epoch`` counts the transactions without rows, which is what an ALTER TABLE looks like: what was
    concluded for rows that do not name every column is to be concluded anew in the next epoch. ``turn``
    grows with each transaction at which the decoder is to ask, for each table at its first row, whether
    it `holds`; in each new epoch for one.
    """

    def __init__(self, context: DecoderContext) -> None:
        self._catalogue, self._captures = context.catalogue, context.captures
        self._describe, self._relation_at = context.describe, context.relation_at
        self._retirement = RelationRetirement(context)
        self._unsettled = context.unsettled
        self._standings = context.standings
        self._captured: dict[tuple[str, str], bool] = {}
        self._current: dict[tuple[str, str], _NamedVersion] = {}
        self._unknown: dict[tuple[str, str], None] = {}
        """Names of tables without an OID, the oldest first."""
        self._former: set[int] = set()
        """OIDs of tables whose name another has by now: they may be gone, too."""
        self._views: list[tuple[str, str]] = []
        self._xid = 0
        self._last: Message | None = None
        self.epoch = self.turn = self._turned = 0

    def began(self, xid: int, lsn: int) -> Collection[Relation]:
        """Note that the rows to come are those of transaction ``xid``, which committed after ``lsn``.

        What was a materialized view may be a table by now. Return relations that are gone, or are to be
        described anew: what the decoder keeps of them is of no use any more.
        """
        self._xid = xid
        if self._turned != self.epoch or (self._standings and self._standings.due(xid)):
            self.turn += 1
            self._turned = self.epoch
        while self._views:
            del self._captured[self._views.pop()]
        due = self._retirement.due(lsn) if self._retirement.pending else frozenset()
        if self._unsettled:
            settled = {oid for oid, until in self._unsettled.items() if until <= lsn}
            for oid in settled:
                del self._unsettled[oid]
            due |= settled
        gone = [v.relation for v in self._current.values() if v.shown.oid in due] if due else []
        if len(self._unknown) > UNKNOWN_KEPT and 0 not in due:
            oldest = list(self._unknown)[: UNKNOWN_KEPT // 2]
            gone += [self._current[name].relation for name in oldest]
        self._former -= due
        for relation in gone:
            name = relation.schema, relation.table
            del self._current[name]
            self._captured.pop(name, None)
            self._unknown.pop(name, None)
        if due:
            self._grown()
        return gone

    def commit(self, begin: Begin, messages: list[Message]) -> None:
        """The transaction of ``begin`` ends, ``messages`` being those of the call so far."""
        last = messages[-1] if messages else self._last
        if last is begin:
            self.epoch += 1

    def pause(self, messages: list[Message]) -> None:
        """A call ends with these messages."""
        if messages:
            self._last = messages[-1]

    def captured(self, schema: str, table: str) -> bool:
        """Tell whether changes of a table are wanted."""
        name = schema, table
        known = self._captured.get(name)
        if known is None:
            captures = self._captures
            known = self._captured[name] = captures is None or captures(schema, table)
        return known

    def relation(self, schema: str, table: str) -> Relation | None:
        """Return the relation as last seen, else as the catalogue has it, else without columns;
        None where it is a materialized view."""
        current = self._current.get((schema, table))
        if current is not None and self._compared(current):
            return current.relation
        standing = self._standing(schema, table)
        present = self._known(schema, table)
        if present is None and self._is_view(schema, table):
            return None
        known = present.columns if present else ()
        columns = tuple(_column(ColumnFact(column.name), column, column.number) for column in known)
        key = frozenset(column.name for column in known if column.in_identity)
        letter = present.identity if present else "d"
        relation = self._version(schema, table, columns, letter, key, present)
        self._stands(schema, table, standing)
        return relation

    def holds(self, relation: Relation) -> bool:
        """Tell whether a relation is the table's still; if not, nothing that the decoder keeps of its rows
        is of use any more."""
        version = self._current.get((relation.schema, relation.table))
        return version is not None and version.relation is relation and self._compared(version)

    def confirm(self, schema: str, table: str) -> None:
        """A row of this epoch showed that the table is as it was."""
        self._current[schema, table].epoch = self.epoch

    def layout(self, schema: str, table: str, row: RowFacts) -> RowLayout | None:
        """Return the layout of rows made up like ``row``; None where they are not of a table, but
        of a materialized view: what REFRESH did is no change of data."""
        former = version = self._current.get((schema, table))
        if former is not None:
            self._compared(former)
        standing = self._standing(schema, table)
        present = self._known(schema, table, row)
        if present is None and self._is_view(schema, table):
            return None
        if version and present and 0 != version.shown.oid != present.oid != 0:
            version = None  # another table has the name
        current = version.relation if version else None
        changed = version is not None and version.epoch != self.epoch
        identity = identity_then(
            row,
            present,
            version.shown if version else None,
            full_before=version is not None and version.full,
        )
        names = columns_then(row, present, current, identity.letter, changed=changed)
        known = {column.name: column for column in present.columns} if present else {}
        if version is not None:
            known |= {column.name: column for column in version.shown.columns}
        facts = row.by_name
        told = [facts.get(name) or ColumnFact(name) for name in names]
        numbers = {name: column.number for name, column in known.items()}
        if present is not None:
            numbers |= numbers_then(told, present)
        columns = tuple(_column(f, known.get(f.name), numbers.get(f.name)) for f in told)
        letter, key, required = identity
        relation = self._version(schema, table, columns, letter, key, present, row)
        self._stands(schema, table, standing)
        full = letter == "f"
        made = self._current[schema, table]
        made.epoch = self.epoch
        made.full = full if row.has_old else version is not None and version.full
        new_at = {fact.name: i for i, fact in enumerate(row.new)}
        old_at = {fact.name: i for i, fact in enumerate(row.old)}
        hides = row.listing is OldRowColumns.ALL and not full and bool(key)
        fill = None if full and row.listing is OldRowColumns.SET else ABSENT
        outside = [c.name for c in relation.columns if hides and not c.in_identity]
        return RowLayout(
            relation,
            new=tuple(new_at.get(name, -1) for name in names),
            old=tuple(-1 if name in outside else old_at.get(name, -1) for name in names),
            old_kind=OldTuple.NONE if not row.has_old else OldTuple.FULL if full else OldTuple.KEY,
            fill=(fill,) * len(names),
            complete=row.lists_all(letter),
            replaces=former is not None and (former.doubted or relation is not former.relation),
            unset=tuple(old_at[name] for name in outside if name in old_at),
            set=tuple(old_at[name] for name in required if name in old_at),
        )

    def _known(self, schema: str, table: str, row: RowFacts | None = None) -> Relation | None:
        """Return what is known of the table that had the name."""
        if self._relation_at is not None:
            shown = row.by_name.values() if row else ()
            columns = [_column(fact, None, None) for fact in shown if fact.type_oid]
            return self._relation_at(schema, table, self._xid, columns)
        return self._catalogue.relation(schema, table)

    def _standing(self, schema: str, table: str) -> Hashable:
        standings = self._standings
        return standings.of(schema, table, self._xid) if standings else None

    def _compared(self, version: _NamedVersion) -> bool:
        """Tell, asking once in a turn, whether what the catalogue said of a table stands still."""
        if self._standings is not None and version.turn != self.turn:
            version.turn = self.turn
            standing = self._standing(version.shown.schema, version.shown.table)
            version.doubted |= standing != version.standing
        return not version.doubted

    def _stands(self, schema: str, table: str, standing: Hashable) -> None:
        """Note what stood for a table before the catalogue was asked for it."""
        version = self._current[schema, table]
        version.standing, version.turn, version.doubted = standing, self.turn, False

    def _is_view(self, schema: str, table: str) -> bool:
        """Tell whether the catalogue knows a materialized view of that name; remember it for the
        transaction at hand, whose other rows of it are then left out at once."""
        was_table = (schema, table) in self._current
        if not self._catalogue.is_materialized_view(schema, table, self._xid, was_table=was_table):
            return False
        self._captured[schema, table] = False
        self._views.append((schema, table))
        return True

    def _version(
        self,
        schema: str,
        table: str,
        columns: tuple[Column, ...],
        identity: str,
        key: frozenset[str],
        present: Relation | None,
        row: RowFacts | None = None,
    ) -> Relation:
        """Return the relation of this shape: the last one if it has it."""
        shown = Relation(
            oid=present.oid if present else 0,
            schema=schema,
            table=table,
            columns=tuple(
                Column(
                    name=column.name,
                    type_oid=column.type_oid,
                    typmod=column.typmod,
                    in_identity=identity == "f" or column.name in key,
                    nullable=column.nullable,
                    number=column.number,
                )
                for column in columns
            ),
            identity=identity,
            wire_key=row.key if row else None,
        )
        current = self._current.get((schema, table))
        if current is None or current.doubted or not current.shown.same_shape(shown):
            describe = self._describe if self.captured(schema, table) else None
            relation = shown
            if describe is not None:
                relation = describe(self._as_told(shown, row))
            if current is not None and current.relation.same_shape(relation):
                relation = current.relation
            if current is not None and current.shown.oid != shown.oid:
                self._former.add(current.shown.oid)
            current = _NamedVersion(shown, relation, self.epoch)
            self._current[schema, table] = current
            self._unknown.pop((schema, table), None)
            if not shown.oid:
                self._unknown[schema, table] = None
            self._former.discard(shown.oid)
            self._grown()
        return current.relation

    def _grown(self) -> None:
        known = {version.shown.oid for version in self._current.values()}
        self._retirement.grown(known | self._former)

    def _as_told(self, shown: Relation, row: RowFacts | None) -> Relation:
        """Return a relation for its description: NOT NULL is the wire's word, or nobody's yet."""
        told = row.by_name if row else {}
        columns = tuple(
            msgspec.structs.replace(
                column, nullable=told[column.name].nullable if column.name in told else None
            )
            for column in shown.columns
        )
        return msgspec.structs.replace(shown, columns=columns, xid=self._xid)


def _column(fact: ColumnFact, known: Column | None, number: int | None) -> Column:
    """Return a column as the row tells of it; what it does not tell as it is known."""
    same = known is not None and fact.type_oid in (0, known.type_oid)
    typmod = known.typmod if known and same else -1
    return Column(
        name=fact.name,
        type_oid=fact.type_oid or (known.type_oid if known else 0),
        typmod=typmod if fact.typmod is None else fact.typmod,
        nullable=(known.nullable if known else None) if fact.nullable is None else fact.nullable,
        number=number,
    )
