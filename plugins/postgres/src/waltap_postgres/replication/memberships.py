"""What the catalogue keeps of how each table was published, to be compared at a later look.

A publication that sends less for a while and is put right leaves no gap in the stream that anybody could
see. But the catalogue's rows that say what is sent are others then: another OID, or the same with another
``xmin``.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec
import psycopg
from psycopg import sql

from waltap_postgres.catalog.catalogue import PostgresCatalogue

__all__ = ["Membership", "find_memberships", "rewritten"]

SCHEMAS = 150000
"""From this version on a publication may name schemas."""

ROOTS = 130000
"""From this version on a publication may name partitioned tables."""

FIRST_ROWS = 1000
LOCK_TIMEOUT = "2s"

OF_SCHEMAS = """
      UNION ALL
      SELECT c.oid, n.oid::text || '/' || n.xmin::text, n.xmin = p.xmin, false
      FROM pg_publication_namespace n JOIN pg_class c ON c.relnamespace = n.pnnspid
      WHERE n.pnpubid = p.oid AND c.relkind IN ('r', 'p')
"""
OF_PARTITIONS = """
      UNION ALL
      SELECT i.inhrelid, concat(r.oid, '/', r.xmin, '/', i.xmin), r.xmin = p.xmin, false
      FROM pg_publication_rel r
      JOIN pg_class b ON b.oid = r.prrelid AND b.relkind = 'p'
      CROSS JOIN LATERAL pg_partition_tree(b.oid) t JOIN pg_inherits i ON i.inhrelid = t.relid
      WHERE r.prpubid = p.oid
"""
MEMBERSHIPS = """
    SELECT m.relation::text, string_agg(p.pubname, ' ' ORDER BY p.pubname),
      string_agg(concat(p.oid, ':', m.whole, ':', p.pubowner,
        CASE WHEN c.relkind <> 'p' AND NOT c.relispartition THEN to_jsonb(p) ->> 'pubviaroot' END, ':',
        p.xmin, ':', p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, '/', m.version),
        ' ' ORDER BY p.oid, m.version),
      n.nspname, c.relname, c.relowner::text, t.xmin::text,
      CASE WHEN bool_or(m.named) THEN '' WHEN c.reltoastrelid <> 0 THEN 'toast ' || c.reltoastrelid
           ELSE c.relfilenode::text END
    FROM pg_publication p CROSS JOIN LATERAL (
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

REWRITTEN = """
    SELECT %(toast)s AND pg_stat_get_tuples_inserted(%(oid)s) > 0 AND NOT EXISTS (SELECT FROM ONLY {table})
      AND NOT EXISTS (SELECT FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.oid = %(oid)s AND a.attnum > 0 AND a.xmin = c.xmin)
      OR EXISTS (
        SELECT FROM (SELECT xmin AS xid, cmin AS command FROM ONLY {table} LIMIT {limit}) r
        JOIN pg_class k ON k.xmin = r.xid AND r.command::text::int8 <= k.cmin::text::int8
        WHERE (k.oid = %(oid)s
            OR k.oid = (SELECT c.reltoastrelid FROM pg_class c WHERE c.oid = %(oid)s)
            OR k.oid IN (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = %(oid)s))
          AND NOT EXISTS (SELECT FROM pg_attribute a
            WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND a.xmin = r.xid))
"""
"""Whether ALTER TABLE wrote every row of a table anew, and no column explains that. VACUUM FULL and
CLUSTER leave rows the xmin that they had; a later command writes what follows a TRUNCATE.
A table that lost all its rows has none that says so, and counts."""


class _Entry(NamedTuple):
    """How one publication has a table. ``whole``: one transaction made both rows as they are. ``unread``
    is what says nothing of this table, but writes ``row`` anew, too. ``sent`` is the rest."""

    oid: str
    whole: str
    unread: str
    row: str
    sent: str


class Membership(msgspec.Struct, frozen=True, array_like=True):
    """How one table is published. ``by`` names the publications, ``how`` has the versions of their rows
    for it. ``schema``, ``name``, ``owner`` and ``named`` tell when it was last given another of them;
    ``file`` is what holds its rows, "" where that tells nothing."""

    by: str
    how: str
    schema: str
    name: str
    owner: str
    named: str | None
    file: str

    def on(self, system_id: str) -> "Membership":
        """Return this as one of that server: another one's OIDs and transactions tell nothing."""
        return msgspec.structs.replace(self, by=f"{system_id} {self.by}")

    def sent_less(self, before: "Membership", *, refuses_missing: bool) -> bool:
        """Tell whether something may have been left out since ``before``, by what was published.
        ``refuses_missing``: the server ends a stream for a publication that was not there at a change."""
        if self.by != before.by:
            return False  # the profile names another one, or another server
        now, old = _entries(self.how), _entries(before.how)
        if now != old:
            anew = {each.oid for each in now}.isdisjoint(each.oid for each in old)
            if anew:  # a stream of what changed while it was missing ends with an error
                return not (refuses_missing and all(each.whole == "t" for each in now))
            explained = [each.unread for each in now] != [each.unread for each in old]
            if not explained or [each.sent for each in now] != [each.sent for each in old]:
                return True
        # moved to another name and back; to change the owner writes that row anew, too
        place, was = (
            (self.schema, self.name, self.owner),
            (before.schema, before.name, before.owner),
        )
        return place == was and self.named != before.named


def _entries(how: str) -> list[_Entry]:
    return [_Entry(*entry.split(":")) for entry in how.split()]


def find_memberships(
    catalogue: PostgresCatalogue, names: Collection[str], version_num: int
) -> dict[str, Membership]:
    """Return, by its OID, how each table is published by ``names``."""
    others = OF_SCHEMAS if version_num >= SCHEMAS else ""
    others += OF_PARTITIONS if version_num >= ROOTS else ""
    rows = catalogue.query(MEMBERSHIPS.format(others=others), (list(names),))
    return {oid: Membership(*row) for oid, *row in rows}


def rewritten(
    catalogue: PostgresCatalogue,
    connection: "psycopg.Connection[tuple[object, ...]]",
    tables: Mapping[str, Membership],
) -> set[str]:
    """Return those of ``tables``, which have another file now, that ALTER TABLE wrote anew for no reason
    that is seen: SET UNLOGGED and SET LOGGED do, and nothing is sent of an unlogged table. What cannot be
    read counts as such."""
    found = set()
    for oid, table in tables.items():
        query = sql.SQL(REWRITTEN).format(
            table=sql.Identifier(table.schema, table.name), limit=sql.Literal(FIRST_ROWS)
        )
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
                toast = table.file.startswith("toast")
                row = connection.execute(query, {"oid": int(oid), "toast": toast}).fetchone()
        except psycopg.Error:
            found.add(oid)
            continue
        if row is None or row[0]:
            found.add(oid)
    return found
