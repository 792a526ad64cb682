"""Completeness of publications: which tables they stream in full, and since when.

A sink that identifies a row by its insert relies on it.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from waltap.offsets.offset import Offset
from waltap.source.completeness import PublicationCompleteness
from waltap.source.connector import StartPosition
from waltap.source.position import parse_lsn
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.replication.slot import ReplicationSlot

__all__ = ["coverage", "covered"]

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
SELECT n.nspname::text, c.relname::text, string_agg(DISTINCT concat_ws('/', up.way, {said}), ';'),
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
# From this version on a publication may name schemas, filter rows and list columns.
WITH_SCHEMAS = 150000


def coverage(
    catalogue: PostgresCatalogue,
    names: Sequence[str],
    tables: Iterable[CatalogTable],
    version_num: int,
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
    whole = [name for name, _, all_operations, _ in publications if all_operations]
    by_root = any(via_root for *_, via_root in publications)
    said = ";".join(f"{name} {identity}" for name, identity, *_ in publications)
    members, filtered = _members(catalogue, listed, version_num)
    published: set[tuple[str, str]] = set(
        catalogue.query(
            "SELECT schemaname::text, tablename::text FROM pg_publication_tables"
            " WHERE pubname = ANY(%s)",
            (whole,),
        )
    )
    found: dict[tuple[str, str], str] = {}
    for table in tables:
        place = table.relation.schema, table.relation.table
        # A row whose update makes it match a row filter is streamed as an insert.
        fits = place in published and place not in filtered
        # Dropping a partition removes rows of the root, and the server streams nothing of that.
        fits &= not (by_root and (table.partitioned or table.partition))
        found[place] = _short(said, members.get(place, "")) if fits else ""
    others = _short(said, "") if whole and not by_root else ""
    since = parse_lsn(catalogue.horizon())
    return PublicationCompleteness(tables=found, others=others, since=since)


def _members(
    catalogue: PostgresCatalogue, names: list[str], version_num: int
) -> tuple[dict[tuple[str, str], str], set[tuple[str, str]]]:
    """Return each table's membership text, and the tables with row filters."""
    schemas = version_num >= WITH_SCHEMAS
    sql = MEMBERS_SQL.format(
        said="r.oid, r.xmin, s.oid, s.xmin" if schemas else "r.oid, r.xmin",
        filtered="r.prqual IS NOT NULL" if schemas else "false",
        more=SCHEMAS_SQL if schemas else "",
        there="r.oid IS NOT NULL" + (" OR s.oid IS NOT NULL" if schemas else ""),
    )
    rows = catalogue.query(sql, (names, names) if schemas else (names,))
    texts = {(schema, table): text for schema, table, text, _ in rows}
    return texts, {(schema, table) for schema, table, _, filtered in rows if filtered}


def _short(*said: str) -> str:
    return hashlib.sha256("|".join(said).encode()).hexdigest()[:16]


def covered(
    start: StartPosition,
    coverage: PublicationCompleteness,
    offset: Offset | None,
    slot: ReplicationSlot | None,
    *,
    steady: bool,
) -> StartPosition:
    """Return ``start`` with its ``coverage`` and the visibility of earlier snapshots.

    The slot may still send changes that a snapshot before ``offset`` has read. ``steady`` means
    that all statements of the new snapshot see the same rows.
    """
    beside = not (start.slot_created or start.resumes)
    if beside and start.lost is None and offset is not None and offset.snapshot is None:
        seen = offset.sole
        start = replace(
            start, offset=start.offset.with_sole(visible=seen.visible, visible_in=seen.visible_in)
        )
    # Rows inserted during a snapshot that is not steady are read and streamed: twice.
    if beside and start.snapshot and not steady:
        return replace(start, coverage=PublicationCompleteness())
    return replace(start, coverage=replace(coverage, goes_on=_goes_on(start, offset, slot)))


def _goes_on(start: StartPosition, offset: Offset | None, slot: ReplicationSlot | None) -> bool:
    """Return whether the slot has every change after ``offset``."""
    if start.resumes:
        return True
    if start.slot_created or start.lost is not None or offset is None or slot is None:
        return False
    position = offset.sole.position.end_lsn
    return offset.snapshot is None and slot.confirmed_flush_lsn <= position
