"""Of which tables publications bring every change, and since when: what a sink may build on that knows a
row by its insert."""

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

PUBLICATIONS_SQL = """
SELECT p.pubname::text, concat_ws(' ', p.oid, p.xmin),
       pubinsert AND pubupdate AND pubdelete
         AND coalesce((to_jsonb(p) ->> 'pubtruncate')::bool, true),
       coalesce((to_jsonb(p) ->> 'pubviaroot')::bool, false)
  FROM pg_publication p WHERE pubname = ANY(%s) ORDER BY 1
"""
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
WITH_SCHEMAS = 150000


def coverage(
    catalogue: PostgresCatalogue,
    names: Sequence[str],
    tables: Iterable[CatalogTable],
    version_num: int,
) -> PublicationCompleteness:
    """Return what publications ``names`` bring of ``tables``.

    What identifies their rows in the catalogue, and who wrote those, tells of changes to and fro. Rows of
    a partitioned table that is published as one vanish with a partition, and nothing is streamed of that.
    A row that comes into a row filter is streamed as an insert.
    """
    if catalogue.wal_end() is None:  # a server that tells no positions tells not since when
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
        fits = place in published and place not in filtered
        fits &= not (by_root and (table.partitioned or table.partition))
        found[place] = _short(said, members.get(place, "")) if fits else ""
    others = _short(said, "") if whole and not by_root else ""
    since = parse_lsn(catalogue.horizon())
    return PublicationCompleteness(tables=found, others=others, since=since)


def _members(
    catalogue: PostgresCatalogue, names: list[str], version_num: int
) -> tuple[dict[tuple[str, str], str], set[tuple[str, str]]]:
    """Return, by table, what makes it a member of one of the publications, and the tables of which one of
    them has some rows alone."""
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
    """Return ``start`` with what is known of ``coverage``, and with what snapshots saw that ended before
    the ``offset``, of which the slot may still bring changes. ``steady``: all statements of this one see
    the same; else rows that are inserted meanwhile are read, and streamed, too."""
    beside = not (start.slot_created or start.resumes)
    if beside and start.lost is None and offset is not None and offset.snapshot is None:
        seen = offset.sole
        start = replace(
            start, offset=start.offset.with_sole(visible=seen.visible, visible_in=seen.visible_in)
        )
    if beside and start.snapshot and not steady:
        return replace(start, coverage=PublicationCompleteness())
    return replace(start, coverage=replace(coverage, goes_on=_goes_on(start, offset, slot)))


def _goes_on(start: StartPosition, offset: Offset | None, slot: ReplicationSlot | None) -> bool:
    """Tell whether ``start`` leaves out nothing behind ``offset``: the slot has it all."""
    if start.resumes:
        return True
    if start.slot_created or start.lost is not None or offset is None or slot is None:
        return False
    position = offset.sole.position.end_lsn
    return offset.snapshot is None and slot.confirmed_flush_lsn <= position
