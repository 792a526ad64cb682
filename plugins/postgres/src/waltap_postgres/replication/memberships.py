"""Memberships of tables in publications, compared between two reads.

If a publication sends less for a while and is then repaired, the stream shows no gap. But the
catalogue's rows that define the publication differ then: another OID, or the same with another
``xmin``.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec
import psycopg
from psycopg import sql

from waltap_postgres.catalog.catalogue import PostgresCatalogue

__all__ = ["Membership", "find_memberships", "rewritten"]

# From this version on a publication may name schemas.
SCHEMAS = 150000

# From this version on a publication may name partitioned tables.
ROOTS = 130000

# Rows that are checked for a rewrite of the table.
FIRST_ROWS = 1000
LOCK_TIMEOUT = "2s"

OF_SCHEMAS = """
      UNION ALL
      SELECT c.oid, concat('schema/', n.oid, '/', n.xmin), n.xmin = p.xmin, false
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

# Whether ALTER TABLE rewrote every row of a table, and no change of a column explains that. VACUUM
# FULL and CLUSTER keep the xmin of rows; rows inserted after a TRUNCATE have a later command. A
# table that lost all its rows has no row as evidence, and is treated as rewritten.
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


class _Entry(NamedTuple):
    """Describe the membership of one table in one publication."""

    # OID of the publication.
    oid: str
    # "t" if one transaction wrote the rows of the publication and of the membership.
    whole: str
    # Properties that do not affect this table, but whose change rewrites ``row`` as well.
    unread: str
    # The xmin of the publication's row.
    row: str
    # The published operations, and the version of the membership's row.
    sent: str


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

    def on(self, system_id: str) -> "Membership":
        """Return the membership marked with its server.

        OIDs and transactions of another server are no evidence.
        """
        return msgspec.structs.replace(self, by=f"{system_id} {self.by}")

    @property
    def by_schema(self) -> bool:
        """Whether a publication has the table because of its schema."""
        return "/schema/" in self.how

    def sent_less(self, before: "Membership", *, refuses_missing: bool) -> bool:
        """Return whether changes may be missing since ``before``.

        ``refuses_missing``: the server ends a stream at a change that is older than its
        publication.
        """
        if self.by != before.by:
            return False  # the profile names another publication or another server
        now, old = _entries(self.how), _entries(before.how)
        if now != old:
            anew = {each.oid for each in now}.isdisjoint(each.oid for each in old)
            if anew:  # the stream ends with an error at a change from before the new publication
                return not (refuses_missing and all(each.whole == "t" for each in now))
            explained = [each.unread for each in now] != [each.unread for each in old]
            if not explained or [each.sent for each in now] != [each.sent for each in old]:
                return True
        # Renamed and renamed back. A change of the owner rewrites that row as well.
        place, was = (
            (self.schema, self.name, self.owner),
            (before.schema, before.name, before.owner),
        )
        return (
            place == was and None not in {self.named, before.named} and self.named != before.named
        )


def _entries(how: str) -> list[_Entry]:
    return [_Entry(*entry.split(":")) for entry in how.split()]


def find_memberships(
    catalogue: PostgresCatalogue, names: Collection[str], version_num: int
) -> dict[str, Membership]:
    """Return OID → membership of the tables that ``names`` publish."""
    others = OF_SCHEMAS if version_num >= SCHEMAS else ""
    others += OF_PARTITIONS if version_num >= ROOTS else ""
    rows = catalogue.query(MEMBERSHIPS.format(others=others), (list(names),))
    return {oid: Membership(*row) for oid, *row in rows}


def rewritten(
    catalogue: PostgresCatalogue,
    connection: "psycopg.Connection[tuple[object, ...]]",
    tables: Mapping[str, Membership],
) -> set[str]:
    """Return the tables that ALTER TABLE rewrote without a visible reason.

    All of ``tables`` have another file than before. SET UNLOGGED and SET LOGGED rewrite a table,
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
                toast = table.file.startswith("toast")
                row = connection.execute(query, {"oid": int(oid), "toast": toast}).fetchone()
        except psycopg.Error:
            # An unreadable table proves nothing, so a gap must be assumed.
            found.add(oid)
            continue
        if row is None or row[0]:
            found.add(oid)
    return found
