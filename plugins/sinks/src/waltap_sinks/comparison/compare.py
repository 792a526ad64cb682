"""Compare buckets, then rows and keys, until both had one position.

Both sides compute checksums of 4,096 buckets of keys, and the rows of different buckets are
compared by key. A remaining difference may be on its way, so rounds follow. A round reads these
keys in the source and asks for its LSN. Then it waits until the destination has this LSN, and
reads the source again and again. The destination's row must equal one of the states that the source
had since the round began. So a lost change is found although others of its row follow, and a row
that changes all the time needs frequent reads.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from waltap.base.text import sql_name
from waltap.ports.sink.verification import ComparedTable, Row, Rows, TableReader, VerificationSource
from waltap_sinks.comparison.differences import TableDifferences, keys_shown, rows_shown
from waltap_sinks.comparison.source import (
    CaptureScope,
    ComparisonSource,
    SourceColumn,
    SourceTable,
    missing_tables,
)
from waltap_sinks.comparison.table_readers import short_hash

if TYPE_CHECKING:
    from psycopg import Connection


# Between two reads of the source. Short, since a row may pass through states within milliseconds
# and only a state that was read counts as one that the source had.
PAUSE_S: Final = 0.005

# Between two rounds if the destination has no position.
ROUND_S: Final = 0.2

# From this number of keys on the source is read once in a round: reading them all every 5 ms would
# be a load on the source.
MANY: Final = 1_000

# Rounds, `ROUND_S` apart, that show the same differences, each at a later position of both sides.
# Such a difference is not on its way. Rows of an incremental snapshot may be, whatever the position.
ALIKE: Final = 15


def compare(
    connection: "Connection[object]",
    target: VerificationSource,
    *,
    tables: Sequence[str] = (),
    without: Sequence[str] = (),
    patience_s: float = 30.0,
    captured: CaptureScope | None = None,
    publications: Sequence[str] = (),
) -> list[TableDifferences]:
    """Compare the tables of ``target`` with the source's.

    ``connection`` is one to the source, in autocommit. ``publications`` filter the source's rows
    and columns. The result also has ``captured`` tables that the target lacks. ``without`` leaves
    out ``column``, ``schema.table.column`` or a whole ``schema.table``. Differences are read again
    for ``patience_s``.
    """
    source = ComparisonSource(connection, publications)
    # Until when columns that are on their way are waited for, in all tables together.
    columns_until: float | None = None

    def with_new_columns(stored: ComparedTable) -> ComparedTable:
        nonlocal columns_until
        columns_until = columns_until or time.monotonic() + patience_s
        return _at_source_position(source, target, stored, columns_until)

    def compared(stored: ComparedTable) -> TableDifferences | None:
        table = source.table(stored)
        if table is None or table.name in without or (tables and table.name not in tables):
            return None
        if stored.not_compared:
            return TableDifferences(table=table.name, not_compared=stored.not_compared)
        pair = _pair(source, target, stored, table, without)
        # A table that is known to be late (suspended in Spark) would use up the patience for
        # nothing.
        patience = 0.0 if stored.lag_reason else patience_s
        result = _compared(source, target, pair, patience)
        if patience and not result.behind and (pair.left_out or not result.equal):
            now = with_new_columns(stored)
            if now.columns != stored.columns:
                pair = _pair(source, target, now, table, without)
                result = _compared(source, target, pair, patience)
        if result.equal:
            return replace(result, lag_reason="")
        late = (each.lag_reason for each in target.tables() if each.name == stored.name)
        return replace(result, lag_reason=stored.lag_reason or next(late, ""))

    had = target.tables()
    found = [result for stored in had if (result := compared(stored))]
    if captured is None:
        return found

    def missing_of(their_tables: Sequence[ComparedTable]) -> list[TableDifferences]:
        every = missing_tables(source, their_tables, captured, tables)
        return [each for each in every if each.table not in without]

    # Tables may appear at the target while the others are compared.
    missing, now = _missing(source, target, missing_of, patience_s)
    before = {(stored.name, stored.oid) for stored in had}
    came = [stored for stored in now if (stored.name, stored.oid) not in before]
    return [*found, *(result for stored in came if (result := compared(stored))), *missing]


def _at_source_position(
    source: ComparisonSource, target: VerificationSource, stored: ComparedTable, deadline: float
) -> ComparedTable:
    """Return a table once the target has the source's position."""
    position = source.position()
    while time.monotonic() < deadline:
        at = target.position()
        if position is None or at is None or at >= position:
            break
        time.sleep(ROUND_S)
    now = (each for each in target.tables() if (each.name, each.oid) == (stored.name, stored.oid))
    return next(now, stored)


def _missing(
    source: ComparisonSource,
    target: VerificationSource,
    missing_of: Callable[[Sequence[ComparedTable]], list[TableDifferences]],
    patience_s: float,
) -> tuple[list[TableDifferences], Sequence[ComparedTable]]:
    """Return the missing tables, and the target's tables.

    It waits until the target has the source's position.
    """
    their_tables = target.tables()
    missing = missing_of(their_tables)
    if patience_s <= 0 or all(each.verdict != "different" for each in missing):
        return missing, their_tables
    names = {each.table for each in missing}
    position, deadline = source.position(), time.monotonic() + patience_s
    while True:
        at, ended = target.position(), time.monotonic() >= deadline
        behind = position is not None and at is not None and at < position
        is_final = ended or (position is not None and at is not None and not behind)
        before, their_tables = their_tables, target.tables()
        if is_final or len(their_tables) != len(before):
            missing = [each for each in missing_of(their_tables) if each.table in names]
        if is_final or all(each.verdict != "different" for each in missing):
            return [replace(each, behind=behind) for each in missing], their_tables
        time.sleep(ROUND_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TablePair:
    """Pair the readers of a table on both sides."""

    name: str
    ours: TableReader
    theirs: TableReader
    # The destination's names of the columns.
    names: tuple[str, ...]
    key: tuple[str, ...]
    left_out: tuple[str, ...]
    removal: Callable[[Collection[Row]], Iterable[str]] | None = None


def _pair(
    source: ComparisonSource,
    target: VerificationSource,
    stored: ComparedTable,
    table: SourceTable,
    without: Sequence[str],
) -> _TablePair:
    columns: list[tuple[SourceColumn, str, str]] = []
    left_out = []
    for column in table.columns:
        if column.name in without or f"{table.name}.{column.name}" in without:
            continue
        called = stored.columns.get(column.number, column.name)
        text = target.common(stored, sql_name(column.name), called, column.type)
        if text is None:
            left_out.append(column.name)
        else:
            columns.append((column, called, text))
    by_name = {called: column for column, called, _ in columns}
    key = stored.key if all(name in by_name for name in stored.key) else ()
    theirs = [(called, column.type) for column, called, _ in columns]
    ours = source.reader(
        table, [(column, text) for column, _, text in columns], [by_name[name] for name in key]
    )
    return _TablePair(
        name=table.name,
        ours=ours,
        theirs=target.reader(stored, theirs, key),
        names=tuple(called for _, called, _ in columns),
        key=tuple(key),
        left_out=tuple(left_out),
        removal=None
        if stored.removal is None
        else partial(stored.removal, [(name, by_name[name].type) for name in key]),
    )


def _compared(
    source: ComparisonSource, target: VerificationSource, pair: _TablePair, patience_s: float
) -> TableDifferences:
    """Compare a table.

    The patience begins after the first complete read, however long that takes.
    """
    if not pair.key:
        return _compared_without_key(source, target, pair, patience_s)
    sums, other = pair.ours.sums(), pair.theirs.sums()
    differing = sorted(b for b in sums.keys() | other.keys() if sums.get(b) != other.get(b))
    found = _comparison(pair, _total(sums), _total(other))
    if not differing:
        return found
    here, there = pair.ours.rows(differing), pair.theirs.rows(differing)
    if any(None in key for key in (*here, *there)):  # an index has many rows for such a key
        return _compared_without_key(source, target, pair, patience_s)
    open_keys = {key for key in here.keys() | there.keys() if here.get(key) != there.get(key)}
    arrived, behind, deadline = False, False, time.monotonic() + patience_s
    before, alike = dict[Row, tuple[Row | None, Row | None]](), 0
    while open_keys and alike < ALIKE and time.monotonic() < deadline:
        here, there, states, reached = _round(source, target, pair, open_keys, deadline)
        # A destination at one position has every change of that round.
        arrived |= reached is not False
        behind = not arrived
        open_keys = {key for key in open_keys if there.get(key) not in states[key]}
        now = {key: (here.get(key), there.get(key)) for key in open_keys}
        alike = alike + 1 if reached and now == before else 0
        before = now
        if alike:
            time.sleep(ROUND_S)
    if not open_keys:
        # All rows agreed at one position, so the checksums of the first read no longer count.
        total = _total(sums)
        return _comparison(pair, total, total)
    return _with_keys_and_columns(pair, replace(found, behind=behind), open_keys, here, there)


def _round(
    source: ComparisonSource,
    target: VerificationSource,
    pair: _TablePair,
    keys: set[Row],
    deadline: float,
) -> tuple[Rows, Rows, Mapping[Row, set[Row | None]], bool | None]:
    """Read ``keys`` on both sides.

    Return both sides' rows, the source's states of each row since the round began, and whether the
    destination reached its position; None if a side has no position, or the source is a standby.
    """
    here = pair.ours.of_keys(keys)
    states = {key: {here.get(key)} for key in keys}
    position = source.position()
    # A destination may be ahead of a standby.
    began, known = time.monotonic(), source.emits

    def arrived() -> bool:
        nonlocal known
        now = target.position()
        if position is None or now is None:
            known = False
            return time.monotonic() > began + ROUND_S
        return now >= position

    there_yet = arrived()
    while not there_yet and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        if len(keys) <= MANY:
            _sample(pair, keys, states)
        there_yet = arrived()
    there = pair.theirs.of_keys(keys)
    if len(keys) <= MANY:
        _sample(pair, keys, states)
    return here, there, states, None if there_yet and not known else there_yet


def _sample(pair: _TablePair, keys: set[Row], states: Mapping[Row, set[Row | None]]) -> None:
    now = pair.ours.of_keys(keys)
    for key in keys:
        states[key].add(now.get(key))


def _compared_without_key(
    source: ComparisonSource, target: VerificationSource, pair: _TablePair, patience_s: float
) -> TableDifferences:
    """Compare a keyless table until equal, late or `ALIKE`."""
    first = position = source.position() if patience_s > 0 else None
    before, alike, deadline = None, 0, None
    while True:
        # The position before the rows: they are at least as new as it says.
        now = target.position()
        there, here = pair.theirs.total(), pair.ours.total()
        if deadline is None:
            deadline = time.monotonic() + patience_s
        reached = source.emits and position is not None and now is not None and now >= position
        alike = alike + 1 if reached and before == (here, there) else 0
        if here == there or alike == ALIKE or time.monotonic() >= deadline:
            behind = first is not None and now is not None and now < first
            return replace(_comparison(pair, here, there), behind=behind)
        before = here, there
        time.sleep(ROUND_S)
        position = source.position()


def _with_keys_and_columns(
    pair: _TablePair, found: TableDifferences, keys: set[Row], here: Rows, there: Rows
) -> TableDifferences:
    changed = [key for key in keys if key in here and key in there]
    columns = [
        name for n, name in enumerate(pair.names) if any(here[k][n] != there[k][n] for k in changed)
    ]
    same = found.source_hash == found.target_hash
    surplus = frozenset(key for key in keys if key not in here)
    removed = () if pair.removal is None or not surplus else pair.removal(surplus)
    return replace(
        found,
        target_hash=f"{found.target_hash}*" if same else found.target_hash,
        columns=tuple(columns),
        missing=keys_shown(pair.key, (key for key in keys if key not in there)),
        surplus=keys_shown(pair.key, surplus),
        surplus_keys=surplus,
        removal=tuple(removed),
        changed=keys_shown(pair.key, changed),
        rows=rows_shown(pair.names, pair.key, keys, here, there),
        key=pair.key,
        keys=frozenset(keys),
    )


def _comparison(
    pair: _TablePair, here: tuple[int, int], there: tuple[int, int]
) -> TableDifferences:
    return TableDifferences(
        table=pair.name,
        source_rows=here[0],
        target_rows=there[0],
        source_hash=short_hash(str(here[1])),
        target_hash=short_hash(str(there[1])),
        left_out=pair.left_out,
    )


def _total(sums: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    return sum(count for count, _ in sums.values()), sum(total for _, total in sums.values())
