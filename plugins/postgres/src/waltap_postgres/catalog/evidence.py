"""What a row or an announced relation proves about when the catalogue was written.

DDL under a savepoint, or in a block with EXCEPTION, writes the catalogue with the id of a
subtransaction: one that is higher than that of its transaction, as a later transaction's is. No query
tells whose an id is. But where the wire shows what was written with it, it was written before.
"""

from collections.abc import Iterable, Iterator, Sequence

from waltap.decode.relation import Column, Relation
from waltap_postgres.catalog.catalogue import CatalogTable
from waltap_postgres.identity import IdentityEvidence, mark

__all__ = ["fits", "shown_by_columns", "shown_writers"]


def shown_writers(wire: Relation, present: CatalogTable, then: Relation) -> Iterator[int]:
    """Yield the transactions whose work an announced relation shows: it is so now, and was otherwise in
    the last description ``then`` of the same relation.

    A row of the catalogue names the last transaction that wrote it, for whatever. So a column counts
    where nothing else of it can have been written later, and replica identity and flags where the
    table shows nothing that is newer.
    """
    yield from shown_by_columns(wire.columns, present, then)
    now = present.relation
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
    """Yield those that columns as rows show them were written by."""
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
    """Tell whether all of ``columns`` can be columns of ``relation``."""
    types = {column.name: column.type_oid for column in relation.columns}
    return all(types.get(column.name) == column.type_oid for column in columns)


def _other(former: Column, found: Column) -> bool:
    return (former.name, former.type_oid) != (found.name, found.type_oid)


def _made_at_once(column: Column, writers: Sequence[int]) -> bool:
    """Tell whether what wrote a new column's row last also made it: its default is as old, and it was
    not set NOT NULL later (ADD COLUMN can do that to rows only with a default)."""
    if len(writers) > 1:
        return len(set(writers)) == 1
    return bool(writers) and bool(column.nullable)


def _differ(wire: Relation, now: Relation) -> bool:
    """Tell whether the columns are others; generated ones are not on every wire."""
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
