"""Completeness of publications: which tables they stream in full, and since when.

A sink that identifies a row by its insert relies on it.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg import sql

from waltap.base.text import sql_name
from waltap.changes.capture.java_regex import NameMatcher
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.transactions.position import parse_lsn
from waltap.ports.offsets.offset import Offset
from waltap.ports.source.connector import PublicationCompleteness, StartPosition
from waltap.ports.source.published import published_tables
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue, TableId
from waltap_postgres.errors import TableLocked
from waltap_postgres.replication.slot import ReplicationSlot

# Shortfalls of an existing publication: operations, rows, columns, roots.
#
# The server does not report them: it just does not send changes that are not published.

# From this version on a publication may name schemas, filter rows and list columns.
SCHEMAS = 150000
# From this version on it may name partitioned tables, and publish_via_partition_root.
ROOTS = 130000

# Letters of ``skipped.operations`` → words of a publication's ``publish`` option.
OPERATIONS = {"c": "insert", "u": "update", "d": "delete", "t": "truncate"}

# ``to_jsonb`` reads columns of pg_publication that older servers do not have.
PUBLICATION_SQL = """
SELECT pubinsert, pubupdate, pubdelete, coalesce((to_jsonb(p) ->> 'pubtruncate')::bool, true),
       coalesce((to_jsonb(p) ->> 'pubviaroot')::bool, false)
  FROM pg_publication p WHERE pubname = %s
"""
# A member with a column list leaves out each column that the list does not name.
PARTIAL_MEMBERS_SQL = """
SELECT n.nspname::text, c.relname::text, r.prqual IS NOT NULL,
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
           AND NOT (a.attnum = ANY(r.prattrs))),
       c.relreplident <> 'f' AND c.reltoastrelid <> 0
  FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
  JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL) ORDER BY 1, 2
"""
CONDITION_SQL = """
SELECT pg_get_expr(r.prqual, r.prrelid) FROM pg_publication_rel r
  JOIN pg_publication p ON p.oid = r.prpubid
  JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %s AND n.nspname = %s AND c.relname = %s
"""


class PublicationShortfall(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one shortfall of a publication."""

    # The omission, for an operator.
    what: str
    # SQL that fixes it.
    statements: tuple[str, ...]
    # The affected (schema, table).
    table_ids: frozenset[TableId]
    # The profile's property that fits the publication, if changes only come under other names.
    fitting: str = ""


def shortfalls(
    catalogue: PostgresCatalogue,
    name: str,
    capture: CaptureProperties,
    *,
    table_ids: frozenset[TableId],
    trees: frozenset[TableId],
    operations: Collection[str],
    publish: str,
) -> Iterator[PublicationShortfall]:
    """Return the shortfalls of publication ``name``, none if it does not exist.

    It must publish ``table_ids`` with ``operations`` at least, and ``trees``, which are partitioned
    tables and partitions, under the names that the profile wants. ``publish`` is the option of a fix.
    """
    rows = catalogue.query(PUBLICATION_SQL, (name,))
    if not rows:
        return
    *published, via_root = rows[0]
    if catalogue.version_num >= SCHEMAS:
        yield from _partial_members(catalogue, name, table_ids, capture)
    has = dict(zip(OPERATIONS.values(), published, strict=True))
    missing = [word for word in operations if not has[word]]
    publication = sql_name(name)
    if missing and table_ids:
        yield PublicationShortfall(
            what=f"no {', '.join(missing)}",
            statements=(f"ALTER PUBLICATION {publication} SET (publish = '{publish}')",),
            table_ids=table_ids,
        )
    wanted = catalogue.properties.publish_via_partition_root
    if trees and catalogue.version_num >= ROOTS and via_root != wanted:
        value = str(wanted).lower()
        statement = f"ALTER PUBLICATION {publication} SET (publish_via_partition_root = {value})"
        what = f"publish_via_partition_root is not {value}, as the profile has it"
        yield PublicationShortfall(
            what=what,
            statements=(statement,),
            table_ids=trees,
            fitting=f"publish.via.partition.root={str(via_root).lower()}",
        )


def _partial_members(
    catalogue: PostgresCatalogue,
    name: str,
    table_ids: frozenset[TableId],
    capture: CaptureProperties,
) -> Iterator[PublicationShortfall]:
    publication = sql_name(name)
    includes = bool(capture.column_include)
    among = NameMatcher(capture.column_include or capture.column_exclude)
    rows: list[tuple[Any, ...]] = catalogue.query(PARTIAL_MEMBERS_SQL, (name,))
    for schema, table, filtered, left_out, lacks_toast in rows:
        columns = [c for c in left_out or () if among(f"{schema}.{table}.{c}") == includes]
        if (schema, table) not in table_ids or not (filtered or columns):
            continue
        parts = []
        if filtered:
            parts = [f"only rows WHERE {_condition(catalogue, (name, schema, table))}"]
        if filtered and lacks_toast:
            parts[0] += " (an update into them lacks unchanged large values: REPLICA IDENTITY FULL)"
        parts += [f"no column {', '.join(columns)}"] if columns else []
        member = sql_name(schema, table)
        yield PublicationShortfall(
            what=f"of {schema}.{table} {' and '.join(parts)}",
            statements=(
                f"ALTER PUBLICATION {publication} DROP TABLE {member}",
                f"ALTER PUBLICATION {publication} ADD TABLE {member}",
            ),
            table_ids=frozenset({(schema, table)}),
        )


def _condition(catalogue: PostgresCatalogue, member: tuple[str, str, str]) -> str:
    """Return a row filter, … while another session locks its table."""
    try:
        with catalogue.brief_locks():
            rows = catalogue.query(CONDITION_SQL, member)
    except TableLocked:
        rows = []
    return next((str(text) for (text,) in rows), "…")


# Memberships of tables in publications, compared between two reads.
#
# If a publication sends less for a while and is then repaired, the stream shows no gap. But the
# catalogue's rows that define the publication differ then: another OID, or the same with another
# ``xmin``.

# Rows that are checked for a rewrite of the table.
FIRST_ROWS = 1000
LOCK_TIMEOUT = "2s"

OF_SCHEMAS = """
      UNION ALL
      SELECT c.oid, concat('schema/', n.oid, '/', n.xmin), n.xmin = p.xmin, false
      FROM pg_publication_namespace n JOIN pg_class c ON c.relnamespace = n.pnnspid
      WHERE n.pnpubid = p.oid AND c.relkind IN ('r', 'p')
"""
# Not by ``pg_partition_tree``, which waits for each session that locks a partition.
OF_PARTITIONS = """
      UNION ALL
      SELECT i.inhrelid, concat(r.oid, '/', r.xmin, '/', i.xmin), r.xmin = p.xmin, false
      FROM pg_publication_rel r
      JOIN tree t ON t.root = r.prrelid JOIN pg_inherits i ON i.inhrelid = t.part
      WHERE r.prpubid = p.oid AND NOT EXISTS
        (SELECT FROM pg_publication_rel o WHERE o.prpubid = p.oid AND o.prrelid = t.part)
"""
MEMBERSHIPS = """
    WITH RECURSIVE tree AS (
      SELECT oid AS root, oid AS part FROM pg_class WHERE relkind = 'p'
      UNION SELECT t.root, i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.part
    )
    SELECT m.relation::text, string_agg(p.pubname, ' ' ORDER BY p.pubname),
      string_agg(concat(p.oid, ':', m.whole, ':', p.pubowner,
        CASE WHEN c.relkind <> 'p' AND NOT c.relispartition THEN to_jsonb(p) ->> 'pubviaroot' END, ':',
        p.xmin, ':', p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, '/', m.version),
        ' ' ORDER BY p.oid, m.version),
      n.nspname, c.relname, c.relowner::text, t.xmin::text,
      CASE WHEN bool_or(m.named) THEN '' WHEN c.reltoastrelid <> 0 THEN 'toast ' || c.reltoastrelid
           ELSE c.relfilenode::text END,
      (SELECT sum(a.xmin::text::int8)::text FROM pg_attribute a
        WHERE a.attrelid = m.relation AND a.attnum > 0)
    FROM {publications} p CROSS JOIN LATERAL (
      SELECT r.prrelid AS relation, r.oid::text || '/' || r.xmin::text AS version,
        r.xmin = p.xmin AS whole, true AS named
      FROM pg_publication_rel r WHERE r.prpubid = p.oid
      {others}
      UNION ALL
      SELECT c.oid, 'all', true, false FROM pg_class c
      WHERE p.puballtables AND c.relkind IN ('r', 'p') AND c.oid >= 16384
    ) m
    JOIN pg_class c ON c.oid = m.relation JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_type t ON t.oid = c.reltype
    WHERE p.pubname = ANY(%s)
    GROUP BY m.relation, n.nspname, c.relname, c.relowner, t.xmin::text, c.reltoastrelid, c.relfilenode
"""

# A decoder without publications streams every table.
EVERYTHING = """(SELECT 0 AS oid, 0 AS pubowner, '0'::xid AS xmin, '' AS pubname, true AS puballtables,
      true AS pubinsert, true AS pubupdate, true AS pubdelete, true AS pubtruncate)"""

# Whether ALTER TABLE rewrote every row of a table, and no change of a column explains that. VACUUM
# FULL and CLUSTER keep the xmin of rows; rows inserted after a TRUNCATE have a later command. Another
# TOAST table, made and put in its place by one transaction, says it whatever became of the rows;
# pg_repack needs two.
REWRITTEN = """
    SELECT %(toast)s AND EXISTS (SELECT FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid
        JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = 1 AND a.xmin = t.xmin
        WHERE c.oid = %(oid)s)
      OR EXISTS (
        SELECT FROM (SELECT xmin AS xid, cmin AS command FROM ONLY {table} LIMIT {limit}) r
        JOIN pg_class k ON k.xmin = r.xid AND r.command::text::int8 <= k.cmin::text::int8
        WHERE (k.oid = %(oid)s
            OR k.oid = (SELECT c.reltoastrelid FROM pg_class c WHERE c.oid = %(oid)s)
            OR k.oid IN (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = %(oid)s))
          AND NOT EXISTS (SELECT FROM pg_attribute a
            WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND a.xmin = r.xid))
"""


class _Entry(NamedTuple):
    """Describe the membership of one table in one publication."""

    # OID of the publication.
    oid: str
    # "t" if one transaction wrote the rows of the publication and of the membership.
    same_transaction: str
    # Properties that do not affect this table, but whose change rewrites ``row`` as well.
    other_properties: str
    # The xmin of the publication's row.
    row: str
    # The published operations, and the version of the membership's row.
    sent: str

    @property
    def unaltered(self) -> bool:
        """Return whether a publication that names the table always had it."""
        # A member by its schema or its root may have come later.
        return self.same_transaction == "t" and self.sent.count("/") == 2


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """Describe how one table is published."""

    # Names of the publications.
    by: str
    # Versions of the catalogue's rows that publish the table.
    how: str
    schema: str
    name: str
    owner: str
    # The transaction that last changed schema, name or owner, None if they select no changes.
    named: str | None
    # The file that holds the table's rows, "" if it is no evidence.
    file: str
    # Changes if a column changes.
    columns: str | None = None

    def on(self, system_id: str) -> "Membership":
        """Return the membership marked with its server.

        OIDs and transactions of another server are no evidence.
        """
        return msgspec.structs.replace(self, by=f"{system_id} {self.by}")

    @property
    def by_schema(self) -> bool:
        return "/schema/" in self.how

    def has_other_toast(self, before: "Membership") -> bool:
        """Return whether the TOAST table is another one, though no column changed."""
        toast = self.file.startswith("toast") and before.file.startswith("toast")
        return toast and self.file != before.file and self.columns == before.columns

    def sent_less(self, before: "Membership", own: Collection[str], *, continues: bool) -> bool:
        """Return whether changes may be missing since ``before``.

        ``own``: the values of ``by`` under the profile's publications, with and without inserts.
        ``continues``: former ones are as they were, and a stream ends at changes from before the present.
        """
        now, old = _entries(self.how), _entries(before.how)
        if self.by != before.by:
            # Another server, or a decoder without publications and its slot, is no evidence.
            (server, _, names), (former, _, were) = self.by.partition(" "), before.by.partition(" ")
            if server != former or not (names and were) or were in own:
                return False
            # Another publication may have had less.
            if not (continues and all(each.unaltered for each in now)):
                return True
        elif now != old:
            explained = [each.other_properties for each in now] != [
                each.other_properties for each in old
            ]
            # A publication that was created again may have had less before it was dropped.
            if not explained or [(e.oid, e.sent) for e in now] != [(e.oid, e.sent) for e in old]:
                return True
        # Renamed and renamed back. A change of the owner rewrites that row as well.
        table_id = (self.schema, self.name, self.owner)
        was = (before.schema, before.name, before.owner)
        return (
            table_id == was
            and None not in {self.named, before.named}
            and self.named != before.named
        )


def _entries(how: str) -> list[_Entry]:
    return [_Entry(*entry.split(":")) for entry in how.split()]


def find_memberships(catalogue: PostgresCatalogue, names: Collection[str]) -> dict[str, Membership]:
    """Return OID → membership of the tables that ``names`` publish.

    Without names every table is a member.
    """
    others = OF_SCHEMAS if catalogue.version_num >= SCHEMAS else ""
    others += OF_PARTITIONS if catalogue.version_num >= ROOTS else ""
    query = MEMBERSHIPS.format(
        publications="pg_publication" if names else EVERYTHING, others=others
    )
    rows = catalogue.query(query, (list(names) or [""],))
    return {oid: Membership(*row) for oid, *row in rows}


def rewritten(
    connection: "psycopg.Connection[tuple[object, ...]]",
    tables: Mapping[str, Membership],
    before: Mapping[str, Membership],
) -> set[str]:
    """Return the tables that ALTER TABLE rewrote without a visible reason.

    All of ``tables`` have another file than ``before``. SET UNLOGGED and SET LOGGED rewrite a table,
    and the server streams no change of an unlogged one.
    """
    found = set()
    for oid, table in tables.items():
        query = sql.SQL(REWRITTEN).format(
            table=sql.Identifier(table.schema, table.name), limit=sql.Literal(FIRST_ROWS)
        )
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
                toast = table.has_other_toast(before[oid])
                row = connection.execute(query, {"oid": int(oid), "toast": toast}).fetchone()
        except psycopg.Error:
            row = None  # an unreadable table proves nothing, so a gap must be assumed
        if row is None or row[0]:
            found.add(oid)
    return found


# ``to_jsonb`` reads columns of pg_publication that older servers do not have. A publication that
# is changed or created again has another OID or another xmin.
PUBLICATIONS_SQL = """
SELECT p.pubname::text, concat_ws(' ', p.oid, p.xmin),
       pubinsert AND pubupdate AND pubdelete
         AND coalesce((to_jsonb(p) ->> 'pubtruncate')::bool, true),
       coalesce((to_jsonb(p) ->> 'pubviaroot')::bool, false)
  FROM pg_publication p WHERE pubname = ANY(%s) ORDER BY 1
"""
# A table is a member through each of its ancestors too; attaching it elsewhere changes the path.
MEMBERS_SQL = """
WITH RECURSIVE up AS (
    SELECT oid AS leaf, oid AS at, relnamespace, ''::text AS way
      FROM pg_class WHERE relkind IN ('r', 'p')
    UNION ALL
    SELECT up.leaf, c.oid, c.relnamespace, concat_ws(' ', up.way, c.oid, i.xmin)
      FROM up JOIN pg_inherits i ON i.inhrelid = up.at JOIN pg_class c ON c.oid = i.inhparent
)
SELECT n.nspname::text, c.relname::text, string_agg(DISTINCT concat_ws('/', up.way, {identity_text}), ';'),
       bool_or({filtered})
  FROM up JOIN pg_class c ON c.oid = up.leaf JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_publication_rel r ON r.prrelid = up.at
       AND r.prpubid IN (SELECT oid FROM pg_publication WHERE pubname = ANY(%s)) {more}
 WHERE up.way <> '' OR {there} GROUP BY 1, 2
"""
SCHEMAS_SQL = """
  LEFT JOIN pg_publication_namespace s ON s.pnnspid = up.relnamespace
       AND s.pnpubid IN (SELECT oid FROM pg_publication WHERE pubname = ANY(%s))
"""


def completeness(
    catalogue: PostgresCatalogue, names: Sequence[str], tables: Iterable[CatalogTable]
) -> PublicationCompleteness:
    """Return how completely publications ``names`` stream ``tables``.

    The OIDs and writers of the catalogue's rows identify each membership. So a membership that was
    changed and changed back is another one.
    """
    # Without positions the server cannot say since when a table is complete.
    if catalogue.wal_end() is None:
        return PublicationCompleteness()
    listed = list(names)
    publications: list[tuple[Any, ...]] = catalogue.query(PUBLICATIONS_SQL, (listed,))
    all_operations_in = [name for name, _, all_operations, _ in publications if all_operations]
    by_root = any(via_root for *_, via_root in publications)
    identity_text = ";".join(f"{name} {identity}" for name, identity, *_ in publications)
    members, filtered = _members(catalogue, listed)
    published: set[TableId] = set(
        catalogue.query(
            "SELECT schemaname::text, tablename::text"
            f" FROM {published_tables(catalogue.version_num)} t"
            " WHERE pubname = ANY(%s)",
            (all_operations_in,),
        )
    )
    found: dict[TableId, str] = {}
    for table in tables:
        table_id = table.relation.table_id
        # A row whose update makes it match a row filter is streamed as an insert.
        fits = table_id in published and table_id not in filtered
        # Dropping a partition removes rows of the root, and the server streams nothing of that.
        fits &= not (by_root and (table.partitioned or table.partition))
        found[table_id] = _short(identity_text, members.get(table_id, "")) if fits else ""
    others = _short(identity_text, "") if all_operations_in and not by_root else ""
    since = parse_lsn(catalogue.horizon())
    return PublicationCompleteness(tables=found, others=others, since=since)


def _members(
    catalogue: PostgresCatalogue, names: list[str]
) -> tuple[dict[TableId, str], set[TableId]]:
    """Return each table's membership text, and the tables with row filters."""
    schemas = catalogue.version_num >= SCHEMAS
    sql = MEMBERS_SQL.format(
        identity_text="r.oid, r.xmin, s.oid, s.xmin" if schemas else "r.oid, r.xmin",
        filtered="r.prqual IS NOT NULL" if schemas else "false",
        more=SCHEMAS_SQL if schemas else "",
        there="r.oid IS NOT NULL" + (" OR s.oid IS NOT NULL" if schemas else ""),
    )
    rows = catalogue.query(sql, (names, names) if schemas else (names,))
    texts = {(schema, table): text for schema, table, text, _ in rows}
    return texts, {(schema, table) for schema, table, _, filtered in rows if filtered}


def _short(*identity_text: str) -> str:
    return hashlib.sha256("|".join(identity_text).encode()).hexdigest()[:16]


def covered(
    start: StartPosition,
    completeness: PublicationCompleteness,
    offset: Offset | None,
    slot: ReplicationSlot | None,
    *,
    steady: bool,
) -> StartPosition:
    """Return ``start`` with completeness and the visibility of earlier snapshots.

    The slot may still send changes that a snapshot before ``offset`` has read. ``steady`` means
    that all statements of the new snapshot see the same rows.
    """
    beside = not (start.slot_created or start.resumes)
    if beside and start.lost is None and offset is not None and offset.snapshot is None:
        seen = offset.sole.visible_in
        start = replace(start, offset=start.offset.with_sole(visible_in=seen))
    # Rows inserted during a snapshot that is not steady are read and streamed: twice.
    if beside and start.snapshot and not steady:
        return replace(start, completeness=PublicationCompleteness())
    return replace(
        start, completeness=replace(completeness, continuous=_is_continuous(start, offset, slot))
    )


def _is_continuous(
    start: StartPosition, offset: Offset | None, slot: ReplicationSlot | None
) -> bool:
    """Return whether the slot has every change after ``offset``."""
    if start.resumes:
        return True
    if start.slot_created or start.lost is not None or offset is None or slot is None:
        return False
    position = offset.sole.position.end_lsn
    return offset.snapshot is None and slot.confirmed_flush_lsn <= position
