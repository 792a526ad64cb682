"""Shortfalls of an existing publication: operations, rows, columns, roots.

The server does not report them: it just does not send changes that are not published.
"""

from collections.abc import Callable, Collection
from typing import Any

import msgspec
from psycopg import sql

from waltap.changes.capture.java_regex import NameMatcher
from waltap.changes.capture.properties import CaptureProperties
from waltap_postgres.catalog.catalogue import PostgresCatalogue

__all__ = [
    "OPERATIONS",
    "PublicationShortfall",
    "WantedPublication",
    "shortfalls",
    "wanted_columns",
    "wanted_operations",
]

# Letters of ``skipped.operations`` → words of a publication's ``publish`` option.
OPERATIONS = {"c": "insert", "u": "update", "d": "delete", "t": "truncate"}

# ``to_jsonb`` reads columns of pg_publication that older servers do not have.
PUBLICATION_SQL = """
SELECT pubinsert, pubupdate, pubdelete, coalesce((to_jsonb(p) ->> 'pubtruncate')::bool, true),
       coalesce((to_jsonb(p) ->> 'pubviaroot')::bool, false)
  FROM pg_publication p WHERE pubname = %s
"""
# A member with a column list leaves out each column that the list does not name.
MEMBERS_SQL = """
SELECT n.nspname::text, c.relname::text, pg_get_expr(r.prqual, r.prrelid),
       (SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
           AND NOT (a.attnum = ANY(r.prattrs)))
  FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
  JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %s AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL) ORDER BY 1, 2
"""


class PublicationShortfall(msgspec.Struct, frozen=True, kw_only=True):
    """Describe one shortfall of a publication."""

    # The omission, for an operator.
    what: str
    # SQL that fixes it.
    statements: tuple[str, ...]
    # The affected (schema, table).
    places: frozenset[tuple[str, str]]


class WantedPublication(msgspec.Struct, frozen=True, kw_only=True):
    """Describe the publication that a pipeline needs."""

    # The (schema, table) that it must publish.
    places: frozenset[tuple[str, str]]
    # Operations that it must publish at least.
    operations: Collection[str]
    # The ``publish`` option of a fix.
    publish: str
    # Returns whether events have schema.table.column.
    column: Callable[[str], bool]
    # Whether changes of ``trees`` must arrive under the root's name.
    via_root: bool
    # Captured partitioned tables and partitions.
    trees: frozenset[tuple[str, str]]


def wanted_operations(capture: CaptureProperties) -> list[str]:
    """Return the captured operations in a publication's words."""
    return [w for letter, w in OPERATIONS.items() if letter not in capture.skipped_operations]


def wanted_columns(capture: CaptureProperties) -> Callable[[str], bool]:
    """Return a predicate for schema.table.column by the profile's lists."""
    if capture.column_include:
        return NameMatcher(capture.column_include)
    excluded = NameMatcher(capture.column_exclude)
    return lambda name: not excluded(name)


def shortfalls(
    catalogue: PostgresCatalogue, name: str, wanted: WantedPublication, version_num: int
) -> list[PublicationShortfall]:
    """Return the shortfalls of publication ``name``.

    There are none if it does not exist.
    """
    rows = catalogue.query(PUBLICATION_SQL, (name,))
    if not rows:
        return []
    *published, via_root = rows[0]
    # Row filters and column lists came with 15.
    found = _of_members(catalogue, name, wanted) if version_num >= 150000 else []
    operations = dict(zip(OPERATIONS.values(), published, strict=True))
    missing = [word for word in wanted.operations if not operations[word]]
    publication = sql.Identifier(name).as_string(None)
    if missing and wanted.places:
        found.append(
            PublicationShortfall(
                what=f"no {', '.join(missing)}",
                statements=(f"ALTER PUBLICATION {publication} SET (publish = '{wanted.publish}')",),
                places=wanted.places,
            )
        )
    # publish_via_partition_root came with 13.
    if wanted.trees and version_num >= 130000 and via_root != wanted.via_root:
        value = str(wanted.via_root).lower()
        statement = f"ALTER PUBLICATION {publication} SET (publish_via_partition_root = {value})"
        what = f"publish_via_partition_root is not {value}, as the profile has it"
        found.append(PublicationShortfall(what=what, statements=(statement,), places=wanted.trees))
    return found


def _of_members(
    catalogue: PostgresCatalogue, name: str, wanted: WantedPublication
) -> list[PublicationShortfall]:
    found: list[PublicationShortfall] = []
    publication = sql.Identifier(name).as_string(None)
    rows: list[tuple[Any, ...]] = catalogue.query(MEMBERS_SQL, (name,))
    for schema, table, condition, left_out in rows:
        columns = [c for c in left_out or () if wanted.column(f"{schema}.{table}.{c}")]
        if (schema, table) not in wanted.places or not (condition or columns):
            continue
        parts = [f"only rows WHERE {condition}"] if condition else []
        parts += [f"no column {', '.join(columns)}"] if columns else []
        member = sql.Identifier(schema, table).as_string(None)
        found.append(
            PublicationShortfall(
                what=f"of {schema}.{table} {' and '.join(parts)}",
                statements=(
                    f"ALTER PUBLICATION {publication} DROP TABLE {member}",
                    f"ALTER PUBLICATION {publication} ADD TABLE {member}",
                ),
                places=frozenset({(schema, table)}),
            )
        )
    return found
