"""Descriptions of the stream's relations, from wire, catalogue and memory.

This is the only place that joins them; its rules are in
docs/decisions/0008-relations-and-catalog.md. A Relation of
the wire is true for its moment: name, columns, types, replica identity and its flags. The catalogue
shows the present, which may be later. So the describer

- queries the same relation only: the same OID, under any name;
- queries only after the relation's transaction is visible;
- adds facts that the wire lacks, and never contradicts it;
- uses a catalogue row only if it is not newer than that transaction. It takes newer or dropped
  parts from the relation's last description, if there is one.

Commit timestamps decide which row is newer, if the server keeps them. Otherwise rows whose work the
wire shows are not newer, and ids decide about the rest.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Self

import msgspec

from waltap.changes.decode.relation import Column, DataType, FormerOwner, Relation
from waltap.ports.source.connector import ConnectorContext
from waltap.ports.source.relation_memory import RelationMemory
from waltap_postgres.catalog.catalogue import CatalogTable, KeyRule, PostgresCatalogue, covers
from waltap_postgres.catalog.column_numbers import ColumnNumbers, by_number
from waltap_postgres.catalog.evidence import (
    WRAP,
    CatalogVersion,
    NameResolutionCache,
    TablesAhead,
    came_later,
    fits,
    shown_by_columns,
    shown_writers,
)
from waltap_postgres.errors import INSERTS_SUFFIX
from waltap_postgres.identity import IdentityEvidence, identity_evidence

log = logging.getLogger(__name__)


# Time that a transaction with a decoded commit may stay invisible. Its backend has written the commit
# record, but has not left the list of running transactions, or waits for a synchronous standby.
VISIBLE_WITHIN_S = 3.0

# The wire has 32 bits of an id; they mean the 64-bit id nearest to the end of the snapshot.
VISIBLE_SQL = """
SELECT txid_visible_in_snapshot(x.xmax + x.ahead, x.snapshot), x.xmax,
       EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.transaction::text = %s)
  FROM (SELECT s.snapshot, txid_snapshot_xmax(s.snapshot) AS xmax,
               (%s::int8 - txid_snapshot_xmax(s.snapshot) %% 4294967296 + 6442450944) %% 4294967296
                 - 2147483648 AS ahead
          FROM (SELECT txid_current_snapshot() AS snapshot OFFSET 0) s OFFSET 0) x
"""


# The next id that a transaction gets.
NEXT_XID_SQL = "SELECT txid_snapshot_xmax(txid_current_snapshot())"

SCHEMA_SQL = "SELECT xmin::text::int8 FROM pg_namespace WHERE nspname = %s"

# `to_jsonb`: the column came with 15.
LISTED_SQL = """
SELECT to_jsonb(r) -> 'prattrs' FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
 WHERE r.prrelid = %s AND p.pubname = ANY(%s)
"""

# A subtransaction has the timestamp of its transaction.
ORDER_SQL = """
SELECT w.xid, pg_xact_commit_timestamp(w.xid::text::xid) > pg_xact_commit_timestamp(%s::xid)
  FROM unnest(%s::int8[]) w(xid)
"""

# Whether the server keeps commit timestamps; a standby counts as one that keeps none.
TIMESTAMPS_SQL = """
SELECT coalesce(current_setting('track_commit_timestamp', true), 'off') = 'on' AND NOT pg_is_in_recovery()
"""


class RelationDescriber:
    """Describe the relations of one connection's stream.

    ``delivers_prepared``: the pipeline delivers rows at PREPARE TRANSACTION, when the transaction's
    work is not visible and may never be. ``follows_numbers``: a sink knows columns by their
    numbers. ``stopping`` ends a wait early.
    """

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        memory: RelationMemory,
        *,
        delivers_prepared: bool = False,
        follows_numbers: bool = False,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._catalogue, self._memory = catalogue, memory
        self._ahead = TablesAhead(catalogue)
        self._delivers_prepared, self._stopping = delivers_prepared, stopping
        self._follows_numbers = follows_numbers
        # The last transaction that became visible.
        self._moment = CatalogVersion()
        # OIDs that this session has described.
        self._described: set[int] = set()
        # OID → WAL end up to which a remembered key holds.
        self.valid_until: dict[int, int] = {}
        # Dropped types that a warning has named.
        self._gone: set[int] = set()
        # OID → id at which the table's key was last seen, or first seen to be gone.
        self._keyed: dict[int, int] = {}
        # Whether the server keeps commit timestamps; None before the first query.
        self._timestamps: bool | None = None
        self.name_resolution = NameResolutionCache(catalogue, self._when_visible)

    @classmethod
    def of(cls, catalogue: PostgresCatalogue, context: ConnectorContext) -> Self:
        return cls(
            catalogue,
            context.memory,
            delivers_prepared=context.delivers_prepared,
            follows_numbers=context.follows_numbers,
            stopping=context.stopping,
        )

    def describe(self, wire: Relation) -> Relation:
        """Return ``wire``, completed from the catalogue and memory.

        Raises: ConnectionLost, SourceError.
        """
        present, moment = self._present(wire)
        remembered = self._memory.get(wire.oid)
        types = self._types(wire, remembered)
        if present is not None and remembered is not None:
            moment = self._latest(moment, present)
        again = wire.oid in self._described
        # A start describes the tables that it does not know, and the stream may lag behind that.
        ahead = not again and remembered is not None and moment.precedes(remembered.xid)
        most = len(present.relation.columns) + len(present.dropped) if present else 0
        numbers = ColumnNumbers(
            wire,
            present,
            None if ahead and present else remembered,
            moment,
            types,
            listed=self._listed(wire.oid) if len(wire.columns) < most else (),
            gone=bool(present is None and wire.oid and not self._catalogue.exists(wire.oid)),
        )
        if present is not None and remembered is not None:
            moment = moment.reaching(shown_writers(wire, present, remembered), present.writers)
        described = joined(
            wire,
            present,
            remembered,
            types,
            moment,
            numbers=numbers.found,
            again=again,
            rule=self._catalogue.properties.key_index,
        )
        if wire.oid:
            described = msgspec.structs.replace(described, former_owner=self._former_owner(wire))
            if present is not None and described.primary_key and not present.relation.primary_key:
                self._unsettle(wire, remembered)
            self._described.add(wire.oid)
            self._memory.put(msgspec.structs.replace(described, xid=wire.xid))
            if numbers.ambiguous and self._follows_numbers and not self._delivers_prepared:
                self._read_again(wire)
        return described

    def _listed(self, oid: int) -> frozenset[int]:
        """Return the numbers of columns that publications list, none without lists."""
        name = self._catalogue.properties.publication_name
        rows = self._catalogue.query(LISTED_SQL, (oid, [name, name + INSERTS_SUFFIX]))
        return frozenset(chain(*(row[0] for row in rows))) if (None,) not in rows else frozenset()

    def _read_again(self, wire: Relation) -> None:
        """Have the table's rows read again, since columns may have wrong numbers."""
        log.warning(
            "columns of %s were dropped and added, and nothing shows which ones its changes have: "
            "values may be in the wrong columns until its rows are read again (waltap snapshot FILE %s)",
            wire.name,
            wire.name,
            extra={"table": wire.name},
        )
        self._memory.hide(wire.oid)
        self.valid_until[wire.oid] = self._catalogue.wal_end() or 0

    def _present(self, wire: Relation) -> tuple[CatalogTable | None, CatalogVersion]:
        """Return the catalogue's table, read after ``wire`` is visible.

        The second value is the moment of that read.
        """
        oid, xid = wire.oid, wire.xid
        if xid and oid in self._described and self._catalogue.shows_transactions:
            found = self._ahead.again(oid, xid)
            if found is not None:
                return found[0], CatalogVersion(xid, found[1] % WRAP)
        moment = self._when_visible(xid)
        return self._ahead.table_of(oid, xid) if oid else None, moment

    def _former_owner(self, wire: Relation) -> FormerOwner | None:
        """Return the former owner of ``wire``'s name, or None."""
        then = self._memory.named(wire.schema, wire.table)
        if then is not None and then.oid == wire.oid:
            return then.former_owner  # changes that are read again state it again
        oid = self._memory.renamed_to(wire.schema, wire.table) if then is None else then.oid
        now = self._catalogue.table_of(oid) if oid not in (0, wire.oid) else None
        if now is None:
            return None
        return FormerOwner(oid=oid, schema=now.relation.schema, table=now.relation.table)

    def forget(self, oid: int) -> None:
        self._described.discard(oid)
        self._keyed.pop(oid, None)

    def _unsettle(self, wire: Relation, remembered: Relation | None) -> None:
        """Limit a remembered key to transactions that have committed by now."""
        # The key is dropped, but the catalogue does not show whether before or after this
        # transaction.
        known = remembered is not None and wire.oid not in self._described
        if known and identity_evidence(wire.identity) in (
            IdentityEvidence.ROW,
            IdentityEvidence.NOTHING,
        ):
            self.valid_until[wire.oid] = self._catalogue.wal_end() or 0

    def renew(self, relation: Relation) -> Relation:
        """Return a described relation with its present data types.

        The same object is returned if they have not changed.
        """
        types = self._types(relation, relation)
        if all(types.get(column.type_oid) == column.data_type for column in relation.columns):
            return relation
        columns = tuple(
            msgspec.structs.replace(column, data_type=types.get(column.type_oid))
            for column in relation.columns
        )
        renewed = msgspec.structs.replace(relation, columns=columns)
        if relation.oid:
            self._memory.put(renewed)
        return renewed

    def relation_at(
        self, schema: str, table: str, xid: int, columns: Sequence[Column] = ()
    ) -> Relation | None:
        """Return the table that a name meant for the committed ``xid``.

        None means that it is unknown or was no table. Wires that only name tables need this;
        ``columns`` are those that a row shows. A table that got its name or identity after ``xid``
        does not count.
        """
        moment = self._when_visible(xid)
        now, then = self._ahead.table(schema, table, xid), self._memory.named(schema, table)
        if now is None and self._catalogue.is_materialized_view(
            schema, table, xid, was_table=then is not None
        ):
            return None
        if now is None:
            return then or self._renamed(schema, table, columns, moment)
        oid, keyed = now.relation.oid, any(column.in_identity for column in now.relation.columns)
        if keyed:
            self._keyed[oid] = moment.horizon
        if then is None:
            return now.relation
        moment = self._latest(moment, now)
        if oid != then.oid:
            later = came_later(now, then, moment, columns) or self._schema_came_later(now, moment)
            return then if later else now.relation
        moment = moment.reaching(shown_by_columns(columns, now, then), now.writers)
        if any(moment.precedes(xid) for xid in now.writers):
            return then
        flagged = _present_now((c for c in then.columns if c.in_identity), now.relation)
        if keyed or not flagged:
            return now.relation
        # A dropped key leaves no catalogue row with the time of the drop. So it still holds for
        # transactions that began before it was last seen, or before it was first missed.
        if (xid - self._keyed.setdefault(oid, moment.horizon)) % WRAP < WRAP // 2:
            return now.relation
        columns = tuple(
            msgspec.structs.replace(column, in_identity=column.name in flagged)
            for column in now.relation.columns
        )
        return msgspec.structs.replace(now.relation, identity=then.identity, columns=columns)

    def _schema_came_later(self, now: CatalogTable, moment: CatalogVersion) -> bool:
        """Return whether a rename of the schema named ``now`` after ``moment``."""
        relation, known = now.relation, self._memory.get(now.relation.oid)
        # Other ways to a new name write the table's own row type.
        if known is None or known.table != relation.table or known.schema == relation.schema:
            return False
        rows = self._catalogue.query(SCHEMA_SQL, (relation.schema,))
        return any(moment.precedes(xid) for (xid,) in rows)

    def _renamed(
        self, schema: str, table: str, columns: Sequence[Column], moment: CatalogVersion
    ) -> Relation | None:
        """Return a table by a name that neither catalogue nor memory has.

        This transaction or a later one renamed the table before waltap could query it. ``columns``
        must fit exactly one renamed table, or None is returned.
        """
        if not moment.xid or not columns:
            return None
        shown = {column.name for column in columns}
        found = [
            table
            for table in self._catalogue.named_since(moment.xid)
            if fits(columns, known := self._memory.get(table.relation.oid) or table.relation)
            and shown.issuperset(known.primary_key or ())
        ]
        if len(found) != 1:
            return None
        now = found[0]
        moment = self._latest(moment, now)
        then = self._memory.get(now.relation.oid)
        newer = then is not None and any(moment.precedes(xid) for xid in now.writers)
        chosen = then if newer and then is not None else now.relation
        return msgspec.structs.replace(chosen, schema=schema, table=table)

    def start(self, tables: Iterable[CatalogTable]) -> None:
        """Remember the tables at the start of a stream.

        The stream's first changes are about them, unless memory already has their name or OID.
        """
        memory, relations = self._memory, [table.relation for table in tables]
        self._ahead.expect(relation.oid for relation in relations)
        unknown = [
            relation
            for relation in relations
            if memory.get(relation.oid) is None
            and memory.named(relation.schema, relation.table) is None
        ]
        # The stream may lag behind what the catalogue shows now.
        upcoming = 0
        if unknown and self._catalogue.shows_transactions:
            ((upcoming,),) = self._catalogue.query(NEXT_XID_SQL)
        for relation in unknown:
            memory.put(msgspec.structs.replace(relation, xid=upcoming % WRAP))

    def _latest(self, moment: CatalogVersion, present: CatalogTable) -> CatalogVersion:
        """Return ``moment`` with the server's order of commits.

        Only writers of ``present`` with later ids are queried.
        """
        writers = {xid for xid in (present.named, *present.writers) if moment.precedes(xid)}
        if not writers:
            return moment
        if self._timestamps is None:
            ((self._timestamps,),) = self._catalogue.query(TIMESTAMPS_SQL)
        # The server keeps the order only with track_commit_timestamp.
        if not self._timestamps:
            return moment
        rows = self._catalogue.query(ORDER_SQL, (str(moment.xid), list(writers)))
        later = {xid: stated for xid, stated in rows if stated is not None}
        return dataclasses.replace(moment, later=later)

    def _types(self, wire: Relation, remembered: Relation | None) -> Mapping[int, DataType]:
        """Return the columns' data types, dropped ones as remembered."""
        found = {
            column.type_oid: column.data_type
            for column in (remembered.columns if remembered else ())
            if column.data_type is not None
        }
        self._catalogue.refresh_types({column.type_oid for column in wire.columns})
        for column in wire.columns:
            known = self._catalogue.data_type(column.type_oid)
            if known is not None:
                found[column.type_oid] = known
            elif column.type_oid not in found and column.type_oid not in self._gone:
                self._gone.add(column.type_oid)
                log.warning(
                    "the type of a column was dropped before its changes were decoded, and nothing is "
                    "known of it: values are given as PostgreSQL text",
                    extra={"table": wire.name, "column": column.name, "type_oid": column.type_oid},
                )
        return found

    def _when_visible(self, xid: int) -> CatalogVersion:
        """Wait until ``xid`` is visible and return the moment."""
        if not self._catalogue.shows_transactions:
            return CatalogVersion()
        if not xid or xid == self._moment.xid:
            return self._moment if xid else CatalogVersion()
        deadline, pause = time.monotonic() + VISIBLE_WITHIN_S, 0.0005
        while True:
            ((visible, xmax, prepared),) = self._catalogue.query(VISIBLE_SQL, (str(xid), xid))
            # A prepared transaction becomes visible only at COMMIT PREPARED, if ever.
            if visible or (prepared and self._delivers_prepared) or self._stopping():
                break
            if time.monotonic() >= deadline:
                log.warning(
                    "a transaction is decoded and does not become visible: what it did to tables is "
                    "described as it was before",
                    extra={"xid": xid},
                )
                break
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        self._moment = CatalogVersion(xid, xmax % WRAP)
        return self._moment


def joined(
    wire: Relation,
    present: CatalogTable | None,
    remembered: Relation | None,
    types: Mapping[int, DataType],
    moment: CatalogVersion,
    *,
    numbers: Mapping[int, int],
    again: bool,
    rule: KeyRule,
) -> Relation:
    """Return ``wire``, completed from the other descriptions.

    ``numbers``: index of a column → its number. ``again``: this session has described the relation
    before. So parts that the catalogue lacks were dropped before this announcement.
    """
    now = by_number(present.relation) if present else {}
    matched = {n: now[number] for n, number in numbers.items() if number in now}
    before = remembered.columns if remembered else ()
    then = {(c.number if c.number is not None else c.name): c for c in before}
    columns = tuple(
        _column(
            msgspec.structs.replace(column, number=numbers.get(n)),
            matched.get(n),
            then.get(numbers.get(n, 0)) or then.get(column.name),
            present,
            types,
            moment,
            of_key=of_key,
        )
        for n, (column, of_key) in enumerate(zip(wire.columns, _of_keys(wire), strict=True))
    )
    key = _key(wire, present, matched, remembered, moment, again=again)
    flagged = tuple(column.name for column in wire.columns if column.in_identity)
    stated = present.relation.wire_key if present is not None else None
    if rule == "sound" and present is not None and _lacks_key(wire, present, moment):
        key, stated = (), None
    # Old rows have only the columns of the identity index; see `key_index`.
    elif (
        rule == "sound"
        and flagged
        and identity_evidence(wire.identity) is IdentityEvidence.INDEX
        and not covers(flagged, key)
    ):
        key, stated = flagged, key
    elif present is not None and key != present.relation.primary_key:
        stated = None
    return msgspec.structs.replace(
        wire,
        columns=columns,
        primary_key=key,
        xid=0,
        wire_key=stated,
        deferrable=(present.relation if present else remembered or wire).deferrable,
        usable_index=present.relation.usable_index if present is not None else None,
    )


def _lacks_key(wire: Relation, present: CatalogTable, moment: CatalogVersion) -> bool:
    """Return whether the wire leaves out columns of the primary key.

    They are generated, or a publication of inserts does not list them. Rows may differ in them
    alone, so the others are no key.
    """
    flagged = sum(column.in_identity for column in wire.columns)
    names = {column.name for column in wire.columns}
    return (
        identity_evidence(wire.identity) is IdentityEvidence.KEY
        and wire.wire_key is None
        and 0 < flagged < len(present.primary_key)
        and not names.issuperset(present.primary_key)
        and not moment.precedes(present.key_changed)
    )


def _present_now(columns: Iterable[Column], now: Relation) -> set[str]:
    """Return the present names of those ``columns`` that still exist."""
    names = {column.name for column in now.columns}
    numbers = {column.number: column.name for column in now.columns if column.number is not None}
    found = (c.name if c.name in names else numbers.get(c.number or 0) for c in columns)
    return {name for name in found if name is not None}


def _of_keys(wire: Relation) -> list[bool]:
    """Return for each column whether the wire has it in a key.

    The key is the primary key, or the index of an identity INDEX; its columns are never NULL.
    """
    flags = identity_evidence(wire.identity) in (IdentityEvidence.KEY, IdentityEvidence.INDEX)
    stated = wire.wire_key or ()
    return [(flags and column.in_identity) or column.name in stated for column in wire.columns]


def _column(
    column: Column,
    now: Column | None,
    then: Column | None,
    present: CatalogTable | None,
    types: Mapping[int, DataType],
    moment: CatalogVersion,
    *,
    of_key: bool,
) -> Column:
    """Complete one column from the catalogue (``now``) or memory (``then``).

    Without both, it can be NULL unless it is ``of_key``.
    """
    if then is not None and then.type_oid != column.type_oid:
        then = None
    same, known = now is not None and now.type_oid == column.type_oid, now
    if then is not None and (
        now is None
        or not same
        or present is None
        or any(moment.precedes(xid) for xid in present.changed.get(now.number or 0, ()))
    ):
        known, same = then, True
    nullable = column.nullable
    if nullable is None:
        nullable = not of_key if known is None else known.nullable
    default = known.default if known and same else None
    # The table was locked when the catalogue was read, so its defaults are unknown.
    if known is now and then is not None and present is not None and not present.defaults_known:
        default = then.default
    return msgspec.structs.replace(
        column,
        data_type=types.get(column.type_oid) or column.data_type,
        nullable=nullable,
        default=default,
        generated=known.generated if known else False,
        comment=known.comment if known else None,
        missing=known.missing if known and same else None,
    )


def _key(
    wire: Relation,
    present: CatalogTable | None,
    matched: Mapping[int, Column],
    remembered: Relation | None,
    moment: CatalogVersion,
    *,
    again: bool,
) -> tuple[str, ...]:
    """Return the key's columns in order, () without a key."""
    # Under DEFAULT, and the similar identity of other servers, the flags are the primary key
    # without its order. Without flags the primary key is missing or deferrable, and a unique index
    # can replace it. Under INDEX, FULL and NOTHING only `Relation.wire_key` has the key.
    stated = wire.wire_key
    flagged = tuple(column.name for column in wire.columns if column.in_identity)
    names = {column.name for column in wire.columns}
    by_present = {column.name: wire.columns[n].name for n, column in matched.items()}
    by_identity = identity_evidence(wire.identity) is IdentityEvidence.KEY and stated is None
    now: tuple[str, ...] = ()
    if present is not None:
        now = present.relation.primary_key or ()
        none_then = not stated if stated is not None else by_identity and not flagged
        if none_then and not present.relation.deferrable and present.primary_key:
            now = present.stand_in
        now = tuple(by_present.get(name, "") for name in now)
        now = () if "" in now else now
    then = remembered.primary_key if remembered is not None else None
    if then is not None and not names.issuperset(then):
        then = None
    primary = stated or (flagged if by_identity else ())
    if primary:
        return next((key for key in (now, then or ()) if set(key) == set(primary)), primary)
    if (by_identity or stated is not None) and remembered and not _is_deferrable(remembered):
        then = None
    if now and present is not None:
        newer = moment.precedes(present.key_changed)
        return then if newer and then is not None else now
    if present is not None and not now and again:
        return flagged if identity_evidence(wire.identity) is IdentityEvidence.INDEX else ()
    return then or (flagged if identity_evidence(wire.identity) is IdentityEvidence.INDEX else ())


def _is_deferrable(remembered: Relation) -> bool:
    """Return whether a remembered key was seen without flags.

    Under FULL, INDEX and NOTHING the wire cannot show that, and such keys are rare.
    """
    flagged = any(column.in_identity for column in remembered.columns)
    return identity_evidence(remembered.identity) is IdentityEvidence.KEY and not flagged
