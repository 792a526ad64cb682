"""Relations for plugins that announce nothing: wal2json and decoderbufs.

Each row gives the names and type OIDs of the columns that it sends. It gives no OID of the table
and no replica identity, and it may leave out values. `row_facts` infers the rest. A relation is
replaced only when its shape changed, so a stable table keeps one `Relation` object.
"""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from waltap.base.cache import BoundedDict
from waltap.changes.decode.decoder import DecoderContext
from waltap.changes.decode.message import Begin, Message, OldTuple, RelationSeen
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple, Value
from waltap_decoders.retirement import RelationRetirement
from waltap_decoders.row_facts import (
    ColumnFact,
    OldRowColumns,
    RowFacts,
    columns_then,
    identity_then,
    numbers_then,
)

# Limit of tables without an OID. They were already dropped when the catalogue was asked, so the
# catalogue cannot report later that they are gone.
MAX_UNKNOWN = 256

# Limit of names that are kept with what follows from them. A database may create tables without end.
MAX_NAMES = 256

# Limit of plans. Format 1 of wal2json leaves NULL out of old rows, so a wide table under FULL has a
# make-up for every set of columns.
MAX_PLANS = 1000


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Map rows of one make-up to tuples of ``relation``."""

    # The table's version that the rows have.
    relation: Relation
    # For each column of the relation, the index of its new value in the row; -1 means UNCHANGED.
    new: tuple[int, ...]
    # For each column of the relation, the index of its old value in the row; -1 means ``fill``.
    old: tuple[int, ...]
    # Which columns the old tuple covers.
    old_kind: OldTuple
    # The value of columns without an old value: NULL or ABSENT.
    fill: tuple[Value, ...]
    # The row names every column of the table, so an ALTER TABLE cannot go unnoticed.
    complete: bool
    # ``relation`` differs from the table's last one, so all earlier layouts are void.
    replaces: bool
    # Indexes of old values that are NULL in every row of this replica identity.
    unset: tuple[int, ...]
    # Indexes of old values that are never NULL under this replica identity.
    set: tuple[int, ...]

    def new_tuple(self, values: list[Value]) -> Tuple:
        """Return the new tuple of ``values``, in row order."""
        return tuple([values[i] if i >= 0 else UNCHANGED for i in self.new])

    def old_tuple(self, values: list[Value]) -> Tuple:
        """Return the old tuple of ``values``, in row order."""
        return tuple([values[i] if i >= 0 else f for i, f in zip(self.old, self.fill, strict=True)])

    def key_is_same(self, new: Tuple, old: Tuple) -> bool:
        """Return whether a key-only old tuple equals the new key."""
        pairs = zip(self.old, new, old, strict=True)
        return all(after == before for i, after, before in pairs if i >= 0)

    def holds(self, values: list[Value]) -> bool:
        """Return whether old values fit this layout's replica identity."""
        for i in self.unset:
            if values[i] is not None:
                return False
        return all(values[i] is not None for i in self.set)


@dataclass(slots=True)
class _NamedVersion:
    """Hold a table's version at one point of the stream."""

    # The table as the rows show it.
    shown: Relation
    # The same, completed from the catalogue.
    relation: Relation
    # The last epoch in which rows showed all of the table.
    epoch: int
    # The last old row was a full one.
    full: bool = False
    # Evidence from the catalogue for the name, read before the table was described.
    evidence: Hashable = None
    # The turn in which that evidence was last compared.
    lookup_round: int = 0
    # The evidence has changed since: the description may be wrong.
    unverified: bool = False


class NamedRelations:
    """Track the tables of one session by name.

    The catalogue is asked once per make-up of rows, never per row. A decoder reports each
    transaction by `began` and `commit`, and the end of each call by `pause`.
    """

    def __init__(self, context: DecoderContext) -> None:
        self._catalogue, self._captures = context.catalogue, context.captures
        self._describe, self._relation_at = context.describe, context.relation_at
        self._retirement = RelationRetirement(context)
        self._valid_until = context.valid_until
        self._name_resolution = context.name_resolution
        self._captured = BoundedDict[tuple[str, str], bool](MAX_NAMES)
        self._current: dict[tuple[str, str], _NamedVersion] = {}
        # Names of tables without an OID, the oldest first.
        self._unknown: dict[tuple[str, str], None] = {}
        # OIDs of tables whose name another table has now: they may be gone, too.
        self._former: set[int] = set()
        self._views: list[tuple[str, str]] = []
        self._xid = 0
        self._last: Message | None = None
        # A transaction without rows may be an ALTER TABLE, so ``epoch`` counts those: it ends all
        # conclusions from rows that do not name every column. ``lookup_round`` grows when the decoder must
        # ask again, at the next row of each table, whether the relation `holds`. Each new epoch
        # starts a turn.
        self.epoch = self.lookup_round = self._round_began = 0

    def began(self, xid: int, lsn: int) -> Collection[Relation]:
        """Begin transaction ``xid``, which committed after ``lsn``.

        Return the relations that are gone or must be described again. The decoder must drop all
        state of their rows.
        """
        self._xid = xid
        if self._round_began != self.epoch or (
            self._name_resolution and self._name_resolution.due(xid)
        ):
            self.lookup_round += 1
            self._round_began = self.epoch
        # A materialized view may have become a table since the last transaction.
        while self._views:
            self._captured.pop(self._views.pop(), None)
        due = self._retirement.due(lsn) if self._retirement.pending else frozenset()
        if self._valid_until:
            expired = {oid for oid, until in self._valid_until.items() if until <= lsn}
            for oid in expired:
                del self._valid_until[oid]
            due |= expired
        gone = [v.relation for v in self._current.values() if v.shown.oid in due] if due else []
        # Drop half at once, so that a stream of such tables does not pay for this at each begin.
        if len(self._unknown) > MAX_UNKNOWN and 0 not in due:
            oldest = list(self._unknown)[: MAX_UNKNOWN // 2]
            gone += [self._current[name].relation for name in oldest]
        self._former -= due
        for relation in gone:
            name = relation.table_id
            del self._current[name]
            self._unknown.pop(name, None)
        if due:
            self._grown()
        return gone

    def commit(self, begin: Begin, messages: list[Message]) -> None:
        """End the transaction of ``begin``.

        ``messages`` are the messages of the current call.
        """
        last = messages[-1] if messages else self._last
        # No message followed the begin: the transaction had no rows.
        if last is begin:
            self.epoch += 1

    def pause(self, messages: list[Message]) -> None:
        """Record the last message of a call for `commit`."""
        if messages:
            self._last = messages[-1]

    def captured(self, schema: str, table: str) -> bool:
        name = schema, table
        known = self._captured.get(name)
        if known is None:
            captures = self._captures
            known = self._captured[name] = captures is None or captures(schema, table)
        return known

    def relation(self, schema: str, table: str) -> Relation | None:
        """Return a relation whose rows name no columns.

        It is the last version that rows showed, or the catalogue's, or one without columns. None
        means that the name is a materialized view's.
        """
        current = self._current.get((schema, table))
        if current is not None and self._compared(current):
            return current.relation
        # Read the evidence first: DDL during the description must show as a change.
        evidence = self._evidence(schema, table)
        present = self._known(schema, table)
        if present is None and self._is_view(schema, table):
            return None
        known = present.columns if present else ()
        columns = tuple(_column(ColumnFact(column.name), column, column.number) for column in known)
        key = frozenset(column.name for column in known if column.in_identity)
        letter = present.identity if present else "d"
        relation = self._version(schema, table, columns, letter, key, present)
        self._store_evidence(schema, table, evidence)
        return relation

    def holds(self, relation: Relation) -> bool:
        """Return whether a relation is still the table's version.

        If not, the decoder must drop all state of its rows.
        """
        version = self._current.get(relation.table_id)
        return version is not None and version.relation is relation and self._compared(version)

    def confirm(self, schema: str, table: str) -> None:
        """Record that a row of this epoch showed the same table."""
        self._current[schema, table].epoch = self.epoch

    def layout(self, schema: str, table: str, row: RowFacts) -> RowLayout | None:
        """Return the layout of rows made up like ``row``.

        None means that the rows are a materialized view's: REFRESH changes no data.
        """
        former = version = self._current.get((schema, table))
        if former is not None:
            self._compared(former)
        evidence = self._evidence(schema, table)
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
        stated = [facts.get(name) or ColumnFact(name) for name in names]
        numbers = {name: column.number for name, column in known.items()}
        if present is not None:
            numbers |= numbers_then(stated, present)
        columns = tuple(_column(f, known.get(f.name), numbers.get(f.name)) for f in stated)
        letter, key, required = identity
        relation = self._version(schema, table, columns, letter, key, present, row)
        self._store_evidence(schema, table, evidence)
        full = letter == "f"
        made = self._current[schema, table]
        made.epoch = self.epoch
        made.full = full if row.has_old else version is not None and version.full
        new_at = {fact.name: i for i, fact in enumerate(row.new)}
        old_at = {fact.name: i for i, fact in enumerate(row.old)}
        # With a key the plugin lists the other columns as if they were NULL; those NULLs are no
        # values.
        hides = row.listing is OldRowColumns.ALL and not full and bool(key)
        # A full old row that lists only set columns leaves out the NULLs.
        fill = None if full and row.listing is OldRowColumns.SET else ABSENT
        outside = [c.name for c in relation.columns if hides and not c.in_identity]
        return RowLayout(
            relation,
            new=tuple(new_at.get(name, -1) for name in names),
            old=tuple(-1 if name in outside else old_at.get(name, -1) for name in names),
            old_kind=OldTuple.NONE if not row.has_old else OldTuple.FULL if full else OldTuple.KEY,
            fill=(fill,) * len(names),
            complete=row.lists_all(letter),
            replaces=former is not None and (former.unverified or relation is not former.relation),
            unset=tuple(old_at[name] for name in outside if name in old_at),
            set=tuple(old_at[name] for name in required if name in old_at),
        )

    def _known(self, schema: str, table: str, row: RowFacts | None = None) -> Relation | None:
        """Return the catalogue's knowledge of the table at the row's time."""
        if self._relation_at is not None:
            shown = row.by_name.values() if row else ()
            columns = [_column(fact, None, None) for fact in shown if fact.type_oid]
            return self._relation_at(schema, table, self._xid, columns)
        return self._catalogue.relation(schema, table)

    def _evidence(self, schema: str, table: str) -> Hashable:
        name_resolution = self._name_resolution
        return name_resolution.of(schema, table, self._xid) if name_resolution else None

    def _compared(self, version: _NamedVersion) -> bool:
        """Return whether the catalogue's answer for a table still holds.

        The catalogue is asked once in a turn.
        """
        if self._name_resolution is not None and version.lookup_round != self.lookup_round:
            version.lookup_round = self.lookup_round
            evidence = self._evidence(version.shown.schema, version.shown.table)
            version.unverified |= evidence != version.evidence
        return not version.unverified

    def _store_evidence(self, schema: str, table: str, evidence: Hashable) -> None:
        """Store the evidence that preceded the table's description."""
        version = self._current[schema, table]
        version.evidence = evidence
        version.lookup_round = self.lookup_round
        version.unverified = False

    def _is_view(self, schema: str, table: str) -> bool:
        """Return whether the name is a materialized view's.

        A view is remembered until the next transaction, so that its other rows are skipped without
        asking the catalogue.
        """
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
        """Return the relation of this shape, reusing the last one."""
        shown = Relation(
            oid=present.oid if present else 0,
            schema=schema,
            table=table,
            columns=tuple(
                msgspec.structs.replace(column, in_identity=identity == "f" or column.name in key)
                for column in columns
            ),
            identity=identity,
            wire_key=row.key if row else None,
        )
        current = self._current.get((schema, table))
        if current is None or current.unverified or not current.shown.same_shape(shown):
            describe = self._describe if self.captured(schema, table) else None
            relation = shown
            if describe is not None:
                relation = describe(self._as_shown(shown, row))
            # The description may undo the difference. A stable table keeps one object.
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

    def _as_shown(self, shown: Relation, row: RowFacts | None) -> Relation:
        """Return a relation as input of its description.

        Only a row's own statement about NOT NULL is kept, since the catalogue's may be newer.
        """
        stated = row.by_name if row else {}
        columns = tuple(
            msgspec.structs.replace(
                column, nullable=stated[column.name].nullable if column.name in stated else None
            )
            for column in shown.columns
        )
        return msgspec.structs.replace(shown, columns=columns, xid=self._xid)


# The make-up of a row: its kind, schema, table, and the columns that it names.
RowMakeUp = tuple[str, str, str, *tuple[object, ...]]

Convert = TypeVar("Convert")


@dataclass(slots=True)
class RowPlan(Generic[Convert]):
    """Hold the compiled reading of rows of one make-up."""

    # The last epoch and turn of `NamedRelations` in which the plan was found to hold.
    epoch: int
    lookup_round: int
    # Order of the table's columns in the row.
    layout: RowLayout
    # Conversions of the new row's values, in the row's order.
    new: tuple[Convert, ...]
    # Conversions of the old row's values, in the row's order.
    old: tuple[Convert, ...]
    # Indexes of values that a new row always has.
    key: tuple[int, ...] = ()


class RowPlans(Generic[Convert]):
    """Keep the plans of one session's rows, and the announced relations."""

    def __init__(self, relations: NamedRelations) -> None:
        self._relations = relations
        self._plans: dict[RowMakeUp, RowPlan[Convert]] = {}
        self._announced: set[Relation] = set()

    def began(self, xid: int, lsn: int) -> None:
        """Begin a transaction, and drop the state of relations that are gone."""
        gone = {relation.table_id for relation in self._relations.began(xid, lsn)}
        if gone:
            self._plans = {k: plan for k, plan in self._plans.items() if k[1:3] not in gone}
            self._announced &= {plan.layout.relation for plan in self._plans.values()}

    def get(self, row: RowMakeUp) -> RowPlan[Convert] | None:
        """Return the plan of a make-up, None if it must be compiled."""
        plan = self._plans.get(row)
        # DDL may have changed the table since the plan was last compared with the catalogue.
        if plan is not None and plan.lookup_round != self._relations.lookup_round:
            return self._renewed(row, plan)
        return plan

    def _renewed(self, row: RowMakeUp, plan: RowPlan[Convert]) -> RowPlan[Convert] | None:
        """Return a plan of an earlier turn if it still holds."""
        relations = self._relations
        schema, table = row[1:3]
        if not relations.holds(plan.layout.relation):
            self._plans = {k: p for k, p in self._plans.items() if k[1:3] != (schema, table)}
            return None
        if plan.epoch != relations.epoch:
            # A row that leaves out columns cannot show that they still exist.
            if not plan.layout.complete:
                return None
            relations.confirm(schema, table)
            plan.epoch = relations.epoch
        plan.lookup_round = relations.lookup_round
        return plan

    def add(
        self,
        row: RowMakeUp,
        layout: RowLayout,
        new: Iterable[Convert],
        old: Iterable[Convert],
        key: Iterable[int] = (),
    ) -> RowPlan[Convert]:
        # Plans and announcements of the table's earlier relation are void.
        if layout.replaces:
            name = row[1:3]
            self._plans = {k: plan for k, plan in self._plans.items() if k[1:3] != name}
            self._announced = {
                each for each in self._announced if each is layout.relation or each.table_id != name
            }
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        relations = self._relations
        plan = RowPlan(
            relations.epoch, relations.lookup_round, layout, tuple(new), tuple(old), tuple(key)
        )
        self._plans[row] = plan
        return plan

    def show(self, relation: Relation, messages: list[Message]) -> None:
        """Announce a relation before its first row."""
        if relation not in self._announced:
            self._announced.add(relation)
            messages.append(RelationSeen(relation))


def _column(fact: ColumnFact, known: Column | None, number: int | None) -> Column:
    """Return a column from a row's facts.

    The known column fills in the facts that the row leaves out.
    """
    # A typmod of another type means nothing.
    same = known is not None and fact.type_oid in (0, known.type_oid)
    typmod = known.typmod if known and same else -1
    return Column(
        name=fact.name,
        type_oid=fact.type_oid or (known.type_oid if known else 0),
        typmod=typmod if fact.typmod is None else fact.typmod,
        nullable=(known.nullable if known else None) if fact.nullable is None else fact.nullable,
        number=number,
    )
