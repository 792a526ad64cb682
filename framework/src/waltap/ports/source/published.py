"""Find the rows and columns that the publications of a stream leave out.

Snapshots and comparisons must leave them out too. An unpublished row from a snapshot would stay at the
destination: its delete is never streamed. Several publications of one table publish the union.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from waltap.changes.decode.relation import Relation

NARROWS = 150000
"""PostgreSQL 15 introduced row filters and column lists."""

# The names of ``pg_publication_tables`` without its locks: from PostgreSQL 16 on, the view waits for each
# session that locks one of the tables. With pubviaroot a table replaces its partitions, else they replace
# it.
PUBLISHED_SQL = """
(WITH RECURSIVE member AS (
   SELECT r.prpubid AS publication, r.prrelid AS relation, true AS top FROM pg_publication_rel r
   UNION
   SELECT s.pnpubid, c.oid, true
     FROM pg_publication_namespace s JOIN pg_class c ON c.relnamespace = s.pnnspid
   UNION
   SELECT m.publication, i.inhrelid, false
     FROM member m JOIN pg_class c ON c.oid = m.relation AND c.relkind = 'p'
     JOIN pg_inherits i ON i.inhparent = m.relation
 )
 SELECT p.oid AS publication, c.oid AS relation, p.pubname, n.nspname AS schemaname, c.relname AS tablename
   FROM pg_publication p
   JOIN pg_class c ON c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
   JOIN pg_namespace n ON n.oid = c.relnamespace
   LEFT JOIN (SELECT publication, relation, bool_and(top) AS top FROM member GROUP BY 1, 2) m
     ON m.publication = p.oid AND m.relation = c.oid
  WHERE CASE WHEN p.puballtables THEN NOT (p.pubviaroot AND c.relispartition)
             WHEN p.pubviaroot THEN m.top ELSE m.top IS NOT NULL END
    AND (p.pubviaroot OR c.relkind = 'r'))
"""

NARROWINGS_SQL = f"""
SELECT t.schemaname::text, t.tablename::text, pg_get_expr(r.prqual, r.prrelid),
       (SELECT array_agg(a.attname::text) FROM pg_attribute a
         WHERE a.attrelid = t.relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
           AND NOT (a.attnum = ANY(r.prattrs)))
  FROM {PUBLISHED_SQL} t
  JOIN pg_publication p ON p.oid = t.publication AND p.pubinsert
  LEFT JOIN pg_publication_rel r ON r.prpubid = t.publication AND r.prrelid = t.relation
   AND NOT EXISTS (SELECT FROM pg_publication_namespace s JOIN pg_class c ON c.relnamespace = s.pnnspid
                    WHERE s.pnpubid = t.publication AND c.oid = t.relation)
 WHERE t.pubname = ANY(%s) AND (t.schemaname::text, t.tablename::text) IN (
   SELECT m.nspname::text, k.relname::text FROM pg_publication q
     JOIN pg_publication_rel r ON r.prpubid = q.oid JOIN pg_class k ON k.oid = r.prrelid
     JOIN pg_namespace m ON m.oid = k.relnamespace
    WHERE q.pubname = ANY(%s) AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL))
"""


class PublishedSubset(msgspec.Struct, frozen=True):
    """The published rows and columns of a table."""

    # SQL condition of the published rows; "": all.
    rows: str = ""
    # Columns that are not published.
    hidden: frozenset[str] = frozenset()

    def of(self, relation: Relation) -> Relation:
        if not self.hidden:
            return relation
        columns = tuple(c for c in relation.columns if c.name not in self.hidden)
        # A part of a key is none: rows may differ in the rest alone.
        key = relation.primary_key if self.hidden.isdisjoint(relation.primary_key or ()) else ()
        return msgspec.structs.replace(relation, columns=columns, primary_key=key)

    def where(self, clause: str = "") -> str:
        """Return a WHERE clause for published rows alone.

        ``clause`` is " WHERE …" or empty.
        """
        if not self.rows:
            return clause
        return f" WHERE ({self.rows})" + (clause and f" AND ({clause.removeprefix(' WHERE ')}\n)")

    def of_select(self, statement: str, alias: str) -> str:
        """Return a SELECT of the published rows of ``statement``.

        ``statement`` must return the columns of the row filter. ``alias`` is a quoted name.
        """
        if not self.rows:
            return statement
        return f"SELECT * FROM ({statement}\n) {alias}{self.where()}"


EVERYTHING = PublishedSubset()
Narrowed = Callable[[], Mapping[tuple[str, str], PublishedSubset]]
"""Returns the published subset of each partly published table, by (schema, table)."""


def published_tables(version_num: int) -> str:
    """Return a relation with pubname, schemaname and tablename, for FROM."""
    # Later versions can leave tables out of FOR ALL TABLES.
    return PUBLISHED_SQL if 160000 <= version_num < 190000 else "pg_publication_tables"


def narrowings(
    query: Callable[[str, tuple[object, ...]], Iterable[Sequence[Any]]], names: Collection[str]
) -> dict[tuple[str, str], PublishedSubset]:
    """Return the published subsets of tables with a row filter or column list.

    ``names`` are publications. ``query`` reads a server of version `NARROWS` or later.
    """
    found: dict[tuple[str, str], list[tuple[str | None, Iterable[str] | None]]] = {}
    for schema, table, rows, hidden in query(NARROWINGS_SQL, (list(names), list(names))):
        found.setdefault((schema, table), []).append((rows, hidden))
    return {
        table_id: PublishedSubset(
            # The publications add up: a row needs one filter, a hidden column all column lists.
            "" if any(rows is None for rows, _ in each) else " OR ".join(f"({r})" for r, _ in each),
            frozenset.intersection(*(frozenset(hidden or ()) for _, hidden in each)),
        )
        for table_id, each in found.items()
    }
