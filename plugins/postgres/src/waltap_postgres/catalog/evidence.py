"""Evidence in rows and announced relations about the catalogue's writers.

DDL under a savepoint, or in a block with EXCEPTION, writes the catalogue with the id of a
subtransaction. That id is higher than its transaction's, as a later transaction's id is. No query
returns the parent of an id. But if the wire shows the work of an id, that work was done before.
"""

from collections.abc import Iterable, Iterator, Sequence

from waltap.decode.relation import Column, Relation
from waltap_postgres.catalog.catalogue import CatalogTable
from waltap_postgres.identity import IdentityEvidence, mark

__all__ = ["fits", "shown_by_columns", "shown_writers"]


def shown_writers(wire: Relation, present: CatalogTable, then: Relation) -> Iterator[int]:
    """Yield the transactions whose work an announced relation shows.

    Their work is in ``wire`` and ``present``, and was not in ``then``, the relation's last
    description.
    """
    # A catalogue row names only its last writer, for whatever change. So a column is evidence if no
    # other change of it can be later.
    yield from shown_by_columns(wire.columns, present, then)
    now = present.relation
    # Replica identity and flags are evidence only if the table shows nothing newer.
    if wire.name != now.name or wire.identity != now.identity or _differ(wire, now):
        return
    if wire.identity != then.identity:
        yield present.row_changed
    flags = _flagged(wire)
    if (
        mark(wire.identity) is IdentityEvidence.KEY
        and flags
        and flags == _flagged(now) != _flagged(then)
    ):
        yield present.key_changed


def shown_by_columns(
    columns: Iterable[Column], present: CatalogTable, then: Relation
) -> Iterator[int]:
    """Yield the transactions that wrote the columns that rows show."""
    now = {column.name: column for column in present.relation.columns}
    names = {column.name: column for column in then.columns}
    numbers = {column.number: column for column in then.columns if column.number is not None}
    for column in columns:
        found = now.get(column.name)
        if found is None or found.number is None or found.type_oid != column.type_oid:
            continue
        if column.nullable is not None and column.nullable != found.nullable:
            continue
        writers = present.changed.get(found.number, ())
        former = names.get(found.name) or numbers.get(found.number)
        if former is None:
            if _made_at_once(found, writers):
                yield writers[0]
        elif writers and former.nullable == found.nullable and _other(former, found):
            yield writers[0]


def fits(columns: Iterable[Column], relation: Relation) -> bool:
    """Return whether all of ``columns`` can belong to ``relation``."""
    types = {column.name: column.type_oid for column in relation.columns}
    return all(types.get(column.name) == column.type_oid for column in columns)


def _other(former: Column, found: Column) -> bool:
    return (former.name, former.type_oid) != (found.name, found.type_oid)


def _made_at_once(column: Column, writers: Sequence[int]) -> bool:
    """Return whether a new column's last writer also created it."""
    # The column and its default have the same writer.
    if len(writers) > 1:
        return len(set(writers)) == 1
    # Without a default, ADD COLUMN cannot make a column of existing rows NOT NULL: a later
    # statement did.
    return bool(writers) and bool(column.nullable)


def _differ(wire: Relation, now: Relation) -> bool:
    """Return whether the columns differ, apart from generated ones."""
    # Not every wire sends generated columns.
    generated = {column.name for column in now.columns if column.generated}
    shapes = (
        {
            column.name: column.type_oid
            for column in relation.columns
            if column.name not in generated
        }
        for relation in (wire, now)
    )
    return next(shapes) != next(shapes)


def _flagged(relation: Relation) -> set[str]:
    return {column.name for column in relation.columns if column.in_identity}
