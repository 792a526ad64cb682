"""Identify a table's columns, and the values that older rows have.

A column is its number in the source. A renamed column keeps its values under the new name. A
dropped column stays, and gets another name when a new column takes its name. Where the number is
unknown (files of earlier versions, sources without numbers), the name decides. When another table
takes a table's name, numbers start again, and earlier columns are known by name.

Where the log cannot decide, the code reports a reason for a new snapshot (`identify`) and never
guesses. Knows no Spark.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from waltap.changes.decode.relation import is_wider, may_change_values
from waltap_sinks.changelog.manifest import ColumnEntry
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.schema.schema import common_type
from waltap_spark.state.output import BasePart, TableState

log = logging.getLogger(__name__)

Value = TypeVar("Value")

# Numbers reserved for one incarnation; PostgreSQL's column numbers end at 1,600.
PER_INCARNATION: Final = 10_000


# Most numbers of former tables of one name that are kept.
# A former table may still exist in the source under another name.
FORMER_MOST: Final = 100


def replaced(table: TableState, *, keeps_rows: bool = False) -> TableState:
    """Return ``table`` prepared for another table of its name.

    ``keeps_rows``: the rows stay, because the mode keeps the past.
    """
    return replace(
        table,
        base=table.base if keeps_rows else (),
        pending=table.pending if keeps_rows else (),
        incarnation=table.incarnation + 1,
        former=(*table.former, table.oid)[-FORMER_MOST:],
        ids={},
        source={},
        streamed=None,
        stale=(),
        widened=(),
    )


def whereabouts(tables: Mapping[str, TableState]) -> dict[int, tuple[str, str]]:
    """Return each source number with its table and row state.

    The state is a verb for messages: the rows "are" there, or "were given up" when another table
    took the name.
    """
    found = {
        oid: (name, "were given up") for name, each in tables.items() for oid in each.former if oid
    }
    return found | {each.oid: (name, "are") for name, each in tables.items() if each.oid}


def _ids(table: TableState, columns: tuple[ColumnEntry, ...]) -> dict[str, int]:
    """Return the numbers of ``columns`` within the table's incarnation."""
    start = table.incarnation * PER_INCARNATION
    return {column.name: start + column.number for column in columns if column.number is not None}


def renames(table: TableState, group: SegmentGroup) -> dict[str, str]:
    """Return old and new names of columns that ``group`` renames."""
    taken = _ids(table, group.columns)
    if taken == table.ids:
        return {}
    named = {number: name for name, number in taken.items()}
    found = {
        name: named[number] for name, number in table.ids.items() if named.get(number, name) != name
    }
    for name, number in table.ids.items():  # dropped in the source, and a new column has its name
        if number not in named and name in taken:
            found[name] = _spare(f"{name}@{number % PER_INCARNATION}", table.columns)
    for name in table.columns:  # known by name alone, and a column with a number takes the name
        if name not in table.ids and name in found.values():
            found[name] = _spare(f"{name}@", table.columns)
    return found


def spare_names(table: TableState, types: Mapping[str, str], *, by_number: bool) -> dict[str, str]:
    """Return spare names for columns of a former table.

    They are the columns whose names the new table uses, with ``types`` that no common type holds.
    ``by_number``: only columns with a number, because files are read by number.
    """
    found = dict[str, str]()
    for name, kind in types.items():
        had, number = table.columns.get(name, kind), table.ids.get(name)
        if common_type(had, kind) is None and not (by_number and number is None):
            suffix = "" if number is None else str(number % PER_INCARNATION)
            found[name] = _spare(f"{name}@{suffix}", {**table.columns, **types})
    return found


def former_numbers(table: TableState, types: Mapping[str, str]) -> dict[str, int]:
    """Return numbers of a former table's columns that cannot hold ``types``.

    Such a column is known by name alone since another table took the name. With its number it gets a
    spare name as soon as a column of its name appears.
    """
    first = table.incarnation * PER_INCARNATION
    return {
        name: number
        for ids in table.version_ids.values()
        for name, number in ids.items()
        if number < first
        and number not in table.ids.values()
        and name in table.columns
        and name not in table.ids
        and common_type(table.columns[name], types.get(name, table.columns[name])) is None
    }


def former_columns_renamed(
    table: TableState,
    gone: TableState,
    group: SegmentGroup,
    types: Mapping[str, str],
    spares: Mapping[str, str],
) -> TableState:
    """Return ``table`` with the former table's columns renamed.

    ``table`` took the place of ``gone`` and gets ``types``, columns of ``group``. The columns in
    ``spares`` get their spare names and keep their former numbers. So do earlier dropped columns,
    and columns that ``table`` lacks and files name differently. Columns that ``table`` has
    continue under its numbers, also where files name them differently.
    """
    new = _ids(table, group.columns)
    names = {name for name in gone.ids if name in new and name in types and name not in spares}
    continued = {gone.ids[name]: new[name] for name in names}
    called = {(name, number) for each in gone.version_ids.values() for name, number in each.items()}
    otherwise = {number for name, number in called if gone.ids.get(name) != number}
    ids = {
        spares.get(name, name): number
        for name, number in gone.ids.items()
        if name in spares
        or (name not in types and (name not in gone.source_columns or number in otherwise))
    }
    # Changes of the former table that are not compacted yet are read by the new numbers, too.
    ids |= {name: new[name] for name in names}
    version_ids = {
        fingerprint: {name: continued.get(number, number) for name, number in each.items()}
        for fingerprint, each in gone.version_ids.items()
    }
    base = tuple(
        replace(
            part, ids={name: continued.get(number, number) for name, number in part.ids.items()}
        )
        for part in table.base
    )
    return replace(_renamed(table, spares), ids=ids, version_ids=version_ids, base=base)


def _spare(name: str, taken: Mapping[str, object]) -> str:
    """Return ``name`` with apostrophes until it is free."""
    while name in taken:
        name += "'"
    return name


def dropped(table: TableState, group: SegmentGroup) -> tuple[str, ...]:
    """Return the columns that ``group`` no longer has.

    They have their names after `renames`.
    """
    called, named = renames(table, group), {column.name for column in group.columns}
    used = {*named, *(called.get(name, name) for name in (*table.hidden, *table.key))}
    present = [called.get(name, name) for name in table.columns]
    # a group that names no columns says nothing about drops
    return tuple(name for name in present if named and name not in used)


def forgotten(table: TableState, names: tuple[str, ...]) -> TableState:
    """Return ``table`` without the columns ``names``.

    Files of rows may have them. Their values no longer count, also when the source adds a column
    with the same name again.
    """
    if not names:
        return table
    return replace(
        table,
        columns={name: kind for name, kind in table.columns.items() if name not in names},
        ids={name: number for name, number in table.ids.items() if name not in names},
        base=tuple(_without(table, part, names) for part in table.base),
    )


def _without(table: TableState, part: BasePart, names: tuple[str, ...]) -> BasePart:
    gone = {file_column(table, part.columns, part.ids, name) for name in names}
    return replace(
        part,
        columns={name: kind for name, kind in part.columns.items() if name not in gone},
        ids={name: number for name, number in part.ids.items() if name not in gone},
    )


def identify(
    table: TableState, group: SegmentGroup, types: Mapping[str, str]
) -> tuple[TableState, tuple[str, ...]]:
    """Return ``table`` with the columns of ``group`` renamed and numbered.

    It also returns reasons to doubt older rows. The group has ``types``; the table's stay. Nothing
    may be pending when `renames` finds any, because pending changes use the earlier names.
    """
    ids = _ids(table, group.columns)
    known = {number for each in table.version_ids.values() for number in each.values()}
    # Rows may be stored with a former table's column of a name, as null. In files of that table it
    # has a number.
    stored = {*table.stored_table.columns}.union(
        *(part.columns.keys() - part.ids for part in table.base)
    )
    if ids != table.ids:
        called = renames(table, group)
        # Files have no column of a spare name: they are read by the number.
        table = _numbered(table, _numbers_by_name(table, (n for n in called if n not in table.ids)))
        table = _renamed(table, called)
        table = _numbered(
            table, {n: i for n, i in ids.items() if n in table.columns and n not in table.ids}
        )
    # a history alone has what was logged, whatever became of the rows
    had_rows = table.mode.name != "append" and (
        table.base or table.pending or table.stored_table.targets
    )
    snapshot_reasons = (
        (
            *_snapshot_reasons(table, group, ids, known, stored & table.columns.keys()),
            *_attribute_reasons(table, group, types),
        )
        if had_rows
        else ()
    )
    widened = tuple(_widened(table, group)) if had_rows else ()
    # after a table rewrite the source's catalog no longer has the missing value
    source = {
        column.name: replace(column, missing=table.source[column.name].missing)
        if column.missing is None and column.name in table.source
        else column
        for column in group.columns
    }
    hidden = {name: entry for name, entry in table.source.items() if entry.generated}
    identified = replace(
        table,
        key=group.key,
        ids={**table.ids, **ids},
        source={**hidden, **source},
        source_columns=tuple(source),
        streamed=tuple(source) if group.streamed else table.streamed,
        version_ids={**table.version_ids, group.fingerprint: ids},
        oid=group.oid or table.oid,
        oid_epoch=group.epoch if group.oid else table.oid_epoch,
        widened=tuple(dict.fromkeys((*table.widened, *widened))),
    )
    return identified, snapshot_reasons


def _renamed(table: TableState, changed: Mapping[str, str]) -> TableState:
    if not changed:
        return table

    def mapped(values: Mapping[str, Value]) -> dict[str, Value]:
        return {changed.get(name, name): value for name, value in values.items()}

    return replace(
        table,
        columns=mapped(table.columns),
        ids=mapped(table.ids),
        source=mapped(table.source),
        streamed=table.streamed and tuple(changed.get(name, name) for name in table.streamed),
    )


def _numbers_by_name(table: TableState, names: Iterable[str]) -> dict[str, int]:
    """Return numbers for columns that are known by name alone.

    It is the number in files of a former table, or one that no column has.
    """
    files = (*table.version_ids.values(), *(part.ids for part in table.base))
    used = {number for ids in (table.ids, *files) for number in ids.values()}
    start = table.incarnation * PER_INCARNATION - 1
    free = (number for number in itertools.count(start, -1) if number not in used)
    found = dict[str, int]()
    for name in names:
        numbers = {ids[name] for ids in files if name in ids}.difference(table.ids.values())
        found[name] = min(numbers) if numbers else next(free)
    return found


def _numbered(table: TableState, ids: Mapping[str, int]) -> TableState:
    """Give columns known by name alone their number, in all files read by their name."""
    if not ids:
        return table

    def known(names: Mapping[str, str], had: dict[str, int]) -> dict[str, int]:
        by_name = (name for name in ids if file_column(table, names, had, name) == name)
        return {**had, **{name: ids[name] for name in by_name}}

    return replace(
        table,
        ids={**ids, **table.ids},
        base=tuple(replace(part, ids=known(part.columns, part.ids)) for part in table.base),
        version_ids={
            fingerprint: known(names, table.version_ids.get(fingerprint, {}))
            for fingerprint, names in table.file_schemas.items()
        },
    )


def renews_columns(table: TableState, group: SegmentGroup) -> bool:
    """Return whether changes have other columns from this group on.

    The server does not send generated columns, but each chunk of a snapshot has them. They stay
    hidden in between, so they are no change.
    """
    names = {column.name for column in group.columns}
    changed = names.symmetric_difference(table.source_columns)
    if not (group.streamed and names.intersection(table.hidden)):
        changed -= set(table.hidden)
    return not changed.isdisjoint(table.columns)


def _snapshot_reasons(
    table: TableState,
    group: SegmentGroup,
    numbers: Mapping[str, int],
    known: set[int],
    stored: set[str],
) -> "list[str]":
    """Return the reasons why older rows may differ from the source.

    ``numbers`` belong to the columns of the group, ``known`` to the columns of earlier groups,
    ``stored`` are former tables' columns that rows have.
    """
    found = []
    newest = max((n for n in known if n // PER_INCARNATION == table.incarnation), default=-1)
    unsent = set(table.hidden).difference(table.source_columns)
    for column in group.columns:
        before = table.source.get(column.name)
        if before is not None:
            if group.streamed and column.name in unsent:
                found.append(f"{column.name} was computed, and not sent")
            types = (before.type, before.typmod), (column.type, column.typmod)
            if may_change_values(*types) and not is_wider(*types):
                found.append(
                    f"the type of {column.name} changed; ALTER TABLE … USING may have given "
                    "older rows other values"
                )
        elif table.source and (
            numbers.get(column.name) in known
            or (column.name in table.columns and not (table.incarnation and numbers))
        ):
            # No other column gets its number: it is not new, it was left out. With numbers, a
            # former table's column is another one.
            found.append(f"{column.name} was not captured for a while")
        elif (
            table.source
            and numbers.get(column.name, newest) < newest  # the server counts upwards
            and (group.streamed or not column.generated)
        ):
            found.append(f"{column.name} was not captured before")
        elif (table.source or column.name not in table.columns) and (
            column.name in stored
            if column.missing is not None
            else column.default or column.nullable is False
        ):
            found.append(f"{column.name} was added with a default that older rows have")
    return found


def _attribute_reasons(
    table: TableState, group: SegmentGroup, types: Mapping[str, str]
) -> Iterator[str]:
    """Yield the reasons why composites' older values may be outdated.

    A table without a key finds rows by all their values, also by values of dropped attributes.
    """
    for name, kind in types.items():
        had = table.columns.get(name, kind)
        if had == kind:  # the table's own type has all attributes that there ever were
            continue
        seen = [each[name] for each in table.file_schemas.values() if name in each]
        if kind in seen:
            continue
        had = seen[-1] if seen else had
        lost = common_type(kind, had) not in (None, kind) and not kind.startswith('"')
        if lost and (not group.key or common_type(had, kind) != had):
            yield f"attributes of {name} were dropped or renamed, and older rows have them"


def _widened(table: TableState, group: SegmentGroup) -> Iterator[str]:
    for column in group.columns:
        before = table.source.get(column.name)
        if before is not None and is_wider(
            (before.type, before.typmod), (column.type, column.typmod)
        ):
            yield (
                f"{column.name} of {table.name} changed from {before.type} to {column.type}; after "
                "ALTER TABLE … USING, take a new snapshot of the table"
            )


def needs_snapshot(table: TableState, snapshot_reason: str) -> TableState:
    """Record that rows of ``table`` may differ from the source."""
    # a doubt is logged once, not with every commit
    if snapshot_reason in table.stale:
        return table
    log.warning("%s needs a new snapshot: %s", table.name, snapshot_reason)
    return replace(table, stale=(*table.stale, snapshot_reason))


def file_column(
    table: TableState, names: Mapping[str, str], ids: Mapping[str, int], column: str
) -> str | None:
    """Return the name of the table's ``column`` in files with ``names``.

    None means that the files do not have the column.
    """
    wanted, other = table.ids.get(column), ids.get(column)
    for name, number in ids.items():
        if number == wanted and name in names:
            return name
    if column not in names or other in table.ids.values():
        return None  # the file's column of this name is another one, perhaps of a former table
    if wanted is None or other is None or other // PER_INCARNATION != wanted // PER_INCARNATION:
        return column
    return None


def first_type(table: TableState, column: str) -> str:
    """Return the type in which the source added ``column``."""
    found = table.columns[column]
    for fingerprint, types in reversed(table.file_schemas.items()):
        name = file_column(table, types, table.version_ids.get(fingerprint, {}), column)
        if name is None:
            break  # earlier files may have one of a former table
        found = types[name]
    return found


def older_value(table: TableState, ids: Mapping[str, int], column: str) -> str | None:
    """Return older rows' value of ``column`` in its `first_type`."""
    entry = table.source.get(column)
    if entry is None or column not in table.source_columns:
        return None
    start = table.incarnation * PER_INCARNATION
    if ids and all(number < start for number in ids.values()):
        return None  # rows of a former table of this name
    return entry.missing
