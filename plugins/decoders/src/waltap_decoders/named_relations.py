"""Relations for plugins that name columns in every row and announce nothing: wal2json, decoderbufs.

Such a plugin tells names and type OIDs of the columns it sends, no OID of the table, no replica
identity, and it leaves out values. What is missing comes from the catalogue, which shows the present
schema; what the rows themselves say goes before it. A relation is made anew only when its shape
changed, so that a stable table keeps one `Relation` object.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from waltap.decode.decoder import DecoderContext
from waltap.decode.message import OldTuple
from waltap.decode.relation import Column, Relation, TypeKind
from waltap.decode.tuple_image import ABSENT, UNCHANGED, Tuple, Value

__all__ = ["ColumnFact", "Layout", "NamedRelations"]

_NEVER_TOASTED = frozenset(
    (16, 18, 19, 20, 21, 23, 24, 26, 27, 28, 29, 600, 601, 603, 628, 700, 701, 718, 774, 790, 829)
) | frozenset((1082, 1083, 1114, 1184, 1186, 1266, 2205, 2950, 3220, 5069))
"""OIDs of types of fixed size: a value of theirs is never left out as unchanged."""


@dataclass(frozen=True, slots=True)
class ColumnFact:
    """What a row says of one column; ``type_oid`` 0, ``typmod`` and ``nullable`` None where it does
    not say."""

    name: str
    type_oid: int = 0
    typmod: int | None = None
    nullable: bool | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows of one make-up become tuples of ``relation``.

    ``new`` and ``old`` give, per column of the relation, the index of its value in the row, -1 where
    the row has none; what stands there then is UNCHANGED in a new tuple and ``fill`` in an old one.
    """

    relation: Relation
    new: tuple[int, ...]
    old: tuple[int, ...]
    old_kind: OldTuple
    fill: tuple[Value, ...]

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


@dataclass(frozen=True, slots=True)
class _Version:
    """A table at one point of the stream: as the rows show it, and completed from the catalogue."""

    shown: Relation
    relation: Relation


class NamedRelations:
    """The tables of one session. Asks the catalogue once per make-up of rows, never per row.

    Of ``context``, its catalogue, ``captures``, ``describe`` and ``relation_at`` are used.
    """

    def __init__(self, context: DecoderContext) -> None:
        self._catalogue, self._captures = context.catalogue, context.captures
        self._describe, self._relation_at = context.describe, context.relation_at
        self._xid = 0
        self._captured: dict[tuple[str, str], bool] = {}
        self._current: dict[tuple[str, str], _Version] = {}

    def began(self, xid: int) -> None:
        """Note that the rows to come are those of transaction ``xid``, which has committed."""
        self._xid = xid

    def captured(self, schema: str, table: str) -> bool:
        """Tell whether changes of a table are wanted."""
        if self._captures is None:
            return True
        name = schema, table
        known = self._captured.get(name)
        if known is None:
            known = self._captured[name] = self._captures(schema, table)
        return known

    def relation(self, schema: str, table: str) -> Relation:
        """Return the relation as last seen, else as the catalogue has it, else without columns."""
        current = self._current.get((schema, table))
        if current is not None:
            return current.relation
        present = self._known(schema, table)
        known = present.columns if present else ()
        columns = tuple(_column(ColumnFact(column.name), column) for column in known)
        key = frozenset(column.name for column in known if column.in_identity)
        letter = present.identity if present else "d"
        return self._version(schema, table, columns, letter, key, present)

    def layout(
        self,
        schema: str,
        table: str,
        new: tuple[ColumnFact, ...],
        old: tuple[ColumnFact, ...],
        *,
        complete: bool,
        old_has_nulls: bool = True,
        old_lists_all: bool = False,
        primary_key: tuple[str, ...] | None = None,
    ) -> Layout:
        """Return the layout of rows with these columns.

        ``complete``: ``new``, or ``old`` where that is empty, lists every column of the table.
        ``old_has_nulls``: old columns that are NULL are listed, too. ``old_lists_all``: old rows
        list every column, and those outside a key are told apart by the replica identity alone.
        ``primary_key``: the primary key as the row tells it, None where it does not.
        """
        present = self._known(schema, table)
        facts = {fact.name: fact for fact in old} | {fact.name: fact for fact in new}
        columns = self._columns(schema, table, new, old, present, facts, complete)
        identity, key = _identity(
            present, columns, old, facts, old_lists_all, old_has_nulls, primary_key
        )
        relation = self._version(schema, table, columns, identity, key, present, primary_key)
        full = identity == "f"
        new_at = {fact.name: i for i, fact in enumerate(new)}
        old_at = {fact.name: i for i, fact in enumerate(old)}
        fill: list[Value] = []
        places = []
        for column in relation.columns:
            hidden = old_lists_all and present and not full and not column.in_identity
            places.append(-1 if hidden else old_at.get(column.name, -1))
            fill.append(None if full and not old_has_nulls else ABSENT)
        kind = OldTuple.NONE if not old else OldTuple.FULL if full else OldTuple.KEY
        wanted = tuple(new_at.get(column.name, -1) for column in relation.columns)
        return Layout(relation, wanted, tuple(places), kind, tuple(fill))

    def _known(self, schema: str, table: str) -> Relation | None:
        """Return what is known of the table that had the name."""
        if self._relation_at is not None:
            return self._relation_at(schema, table, self._xid)
        return self._catalogue.relation(schema, table)

    def _columns(
        self,
        schema: str,
        table: str,
        new: tuple[ColumnFact, ...],
        old: tuple[ColumnFact, ...],
        present: Relation | None,
        facts: Mapping[str, ColumnFact],
        complete: bool,
    ) -> tuple[Column, ...]:
        """Return the columns of the table at this point of the stream.

        Where the row does not list all, they are those of the last version or of the catalogue,
        whichever needs fewer values to have been left out: a column was dropped, or is new.
        """
        known = {column.name: column for column in present.columns} if present else {}
        names: tuple[str, ...] = tuple(fact.name for fact in new or old)
        version = self._current.get((schema, table))
        current = version.relation if version else None
        if version is not None:
            known |= {column.name: column for column in version.shown.columns}
        if not complete:
            fitting = [
                candidate
                for candidate in (current, present)
                if candidate is not None and _fits(candidate, facts, updated=bool(new))
            ]
            if fitting:
                fewest = min(fitting, key=lambda candidate: len(candidate.columns))
                names = tuple(column.name for column in fewest.columns)
            else:
                names = (*names, *(fact.name for fact in old if fact.name not in names))
        return tuple(
            _column(facts.get(name) or ColumnFact(name), known.get(name)) for name in names
        )

    def _version(
        self,
        schema: str,
        table: str,
        columns: tuple[Column, ...],
        identity: str,
        key: frozenset[str],
        present: Relation | None,
        primary_key: tuple[str, ...] | None = None,
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
                )
                for column in columns
            ),
            identity=identity,
            wire_key=primary_key,
        )
        current = self._current.get((schema, table))
        if current is None or not current.shown.same_shape(shown):
            describe = self._describe if self.captured(schema, table) else None
            relation = shown
            if describe is not None:
                relation = describe(msgspec.structs.replace(shown, xid=self._xid))
            current = _Version(shown, relation)
            self._current[schema, table] = current
        return current.relation


def _column(fact: ColumnFact, known: Column | None) -> Column:
    """Return a column as the row tells of it; what it does not tell as it is known."""
    same = known is not None and fact.type_oid in (0, known.type_oid)
    typmod = known.typmod if known and same else -1
    return Column(
        name=fact.name,
        type_oid=fact.type_oid or (known.type_oid if known else 0),
        typmod=typmod if fact.typmod is None else fact.typmod,
        nullable=(known.nullable if known else None) if fact.nullable is None else fact.nullable,
    )


def _fits(known: Relation, facts: Mapping[str, ColumnFact], *, updated: bool) -> bool:
    """Tell whether a row with ``facts`` can be of ``known``: it has all of them, and what an update
    left out can be a TOASTed value."""
    columns = {column.name: column for column in known.columns}
    for name, fact in facts.items():
        column = columns.get(name)
        if column is None or fact.type_oid not in (0, column.type_oid):
            return False
    return not updated or all(
        column.name in facts or _can_be_toasted(column) for column in known.columns
    )


def _can_be_toasted(column: Column) -> bool:
    if column.type_oid in _NEVER_TOASTED:
        return False
    return column.data_type is None or column.data_type.kind is not TypeKind.ENUM


def _identity(
    present: Relation | None,
    columns: tuple[Column, ...],
    old: tuple[ColumnFact, ...],
    facts: Mapping[str, ColumnFact],
    old_lists_all: bool,
    old_has_nulls: bool,
    primary_key: tuple[str, ...] | None,
) -> tuple[str, frozenset[str]]:
    """Return replica identity and its columns: what the old columns show, else the catalogue's."""
    letter = present.identity if present else "d"
    key = frozenset(c.name for c in present.columns if c.in_identity) if present else frozenset()
    if primary_key is not None and letter == "d":
        key = frozenset(primary_key)
    if not old or old_lists_all:
        return letter, key
    shown = frozenset(fact.name for fact in old)
    every = frozenset(column.name for column in columns)
    if letter == "f":
        if shown == every or not old_has_nulls:
            return "f", shown
        return "d", shown  # the row is older than the change of the identity
    if shown <= key or (shown == every == key):
        return letter, key
    return ("f", shown) if shown == every or len(facts) == len(shown) else (letter, shown)
