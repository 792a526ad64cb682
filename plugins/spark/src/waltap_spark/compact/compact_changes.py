"""Compact changes to the last row of each key.

`waltap_spark.compact.net_changes` decides, by keys and positions, which rows remain and where their
unsent values are. For small sets the driver has the rows, and moves the values itself. Of larger sets
it reads keys and positions alone, and Spark moves the values: small frames of positions, to join.
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyspark.errors import PySparkException, PySparkTypeError, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from waltap_spark.compact.log_columns import log_columns
from waltap_spark.compact.net_changes import Array, Fill, Flags, Integers, NetRows, numbered
from waltap_spark.compact.small_sets import LARGE, frame_of
from waltap_spark.errors import first_words
from waltap_spark.planning.plan import LogFacts, unpacked_in_all, unsent_columns
from waltap_spark.schema.expression import (
    GONE,
    LISTED,
    ORDER,
    column_of,
    long_bytes,
    one_of,
    quoted,
    temp,
)
from waltap_spark.schema.schema import LOG_FIELDS
from waltap_spark.state.output import TableState

Rows = Callable[[], DataFrame]
Made = TypeVar("Made")


log = logging.getLogger(__name__)

# Most keys whose unsent values the driver reads; they may be long.
LOCAL_KEYS: Final = 1000

# Most changes whose values the driver reads.
FEW: Final = 20_000

# Most changes whose keys and positions the driver has at a time; of more it takes slices of keys.
SLICE: Final = 4_000_000

# Most positions that are sent to every task.
BROADCAST: Final = 500_000


@dataclass(frozen=True, slots=True)
class LoggedChanges:
    """A table's changes: rows, and the log's facts about them."""

    spark: SparkSession
    table: TableState
    changes: Sequence[LogFacts]
    rows: Rows
    # The table before the changes.
    base: Rows
    # The rows where the driver has them already.
    read: pa.Table | None = None


def compact(
    given: LoggedChanges,
    *,
    segments: Callable[[], pa.Table | None] = lambda: None,
    live: bool = False,
) -> DataFrame:
    """Return a row for each changed key, with a `GONE` flag.

    ``live``: only keys that have a row, without the flag. Each row has the final values of the
    table's columns and of its mode's columns. A truncate discards all rows before it.
    ``segments`` reads keys and positions without Spark where it can.
    """
    found = _compacted_here(given, functools.partial(_Set.last_rows, live=live))
    if found is None:
        found = _LargeSet(given, segments()).last_rows()
        return only_live(found) if live else found
    return found


def compact_here(given: LoggedChanges) -> pa.Table | None:
    """Return `compact` in this process; None: Spark must move the values."""
    return _compacted_here(given, _Set.net_rows)


def only_live(rows: DataFrame) -> DataFrame:
    """Return the ``rows`` without `GONE` ones, and without the flag."""
    return rows.where(f"not {GONE}").drop(GONE)


def carry_values(
    table: TableState, changes: Sequence[LogFacts], rows: DataFrame, base: DataFrame
) -> DataFrame:
    """Fill in unsent values of rows whose key changed."""
    if (
        not table.key
        or not unsent_columns(table, changes)
        or not any(each.key_changes for each in changes)
    ):
        return rows
    given = LoggedChanges(base.sparkSession, table, changes, lambda: rows, lambda: base)
    found = _compacted_here(given, _Set.carried)
    return _LargeSet(given, None).carried() if found is None else found


def _compacted_here(given: LoggedChanges, made: "Callable[[_Set], Made | None]") -> Made | None:
    """Return the result of ``made``, or None.

    None: Spark must move the values, or Arrow cannot carry a type. After any other fault Spark
    tries, and reports the error.
    """
    table, read = given.table, given.read
    if sum(change.rows for change in given.changes) > FEW:
        return None
    try:
        if read is None:
            # the rows are read into the driver's memory, so their size is checked first
            if not _are_light(table, given.changes, given.rows):
                return None
            names = [*table.columns, *LOG_FIELDS]
            read = given.rows().selectExpr(*map(quoted, names)).toArrow()
        if read.nbytes > LARGE:
            return None
        return made(_Set(given, read))
    except (pa.ArrowNotImplementedError, PySparkTypeError, UnsupportedOperationException) as error:
        log.debug("%s is compacted by Spark: %s", table.name, error)
    except (pa.ArrowException, PySparkException) as error:
        _log_fallback(table.name, f"{type(error).__name__}: {first_words(error)}")
    return None


@functools.lru_cache(maxsize=1024)
def _log_fallback(table: str, problem: str) -> None:
    """Warn once that Spark compacts small sets of ``table``."""
    log.warning("%s: few changes are left to Spark, which is slower: %s", table, problem)


def _are_light(table: TableState, changes: Sequence[LogFacts], rows: Rows) -> bool:
    """Return whether the values of ``rows`` fit into the driver.

    Spark computes the size where the change log does not have it: a few thousand rows may hold
    gigabytes.
    """
    unpacked = unpacked_in_all(changes)
    if unpacked:
        return unpacked <= LARGE
    size = long_bytes(table.columns)
    return size is None or (rows().agg(F.sum(size)).collect()[0][0] or 0) <= LARGE


@dataclass(frozen=True, slots=True)
class KeyPart:
    """A column of the key, as the driver reads it."""

    # Its name among the rows in the driver.
    name: str
    # Its expression in Spark.
    sql: str
    kind: str


class _Set:
    """Rows of the change log in the driver, by number.

    ``read`` has at least their positions, operations, and the columns ``key``.
    """

    def __init__(
        self, given: LoggedChanges, read: pa.Table, key: Sequence[KeyPart] | None = None
    ) -> None:
        table, changes = given.table, given.changes
        self._spark, self._table, self._read, self._base = given.spark, table, read, given.base
        self._key = key or [KeyPart(n, quoted(n), table.columns[n]) for n in table.key]
        self._log = log_columns(
            read, [each.name for each in self._key], unsent_columns(table, changes)
        )
        # Whether a transaction deleted a key that it had inserted before.
        key_reused = any(change.key_reused for change in changes)
        self.net = NetRows(self._log, key_reused=key_reused, live_keys=self._live_keys)

    # --- values in the driver ---------------------------------------------------------------------

    def last_rows(self, *, live: bool) -> DataFrame | None:
        """Return `net_rows` for Spark; ``live``: without `GONE` rows and flag."""
        net = self.net_rows()
        if net is not None and live:
            net = net.filter(pc.invert(net.column(GONE))).drop_columns([GONE])
        return None if net is None else self.local(net)

    def net_rows(self) -> pa.Table | None:
        """Return one row for each key, and its `GONE` flag.

        None means that the base has too many of the values.
        """
        rows, fills = self.net.last_rows()
        if sum(int((fill.asked >= 0).sum()) for fill in fills.values()) > LOCAL_KEYS:
            return None
        at, filled = pa.array(rows), self._filled(fills) if fills else self._read
        names = [*self._table.columns, *self._table.mode.extra]
        made = {name: filled.column(name).take(at) for name in names}
        return pa.table({**made, GONE: pc.equal(filled.column("_op").take(at), "d")})

    def carried(self) -> DataFrame:
        """Return the rows, with earlier values where keys changed."""
        fills = self.net.carried()
        filled = self._filled(fills)
        # a filled value is no longer unsent
        unchanged = filled.column("_unchanged").to_pylist()
        for name, fill in fills.items():
            for number in fill.rows.tolist():
                unchanged[number] = [each for each in unchanged[number] if each != name]
        kind = filled.schema.field("_unchanged").type
        made = {name: filled.column(name) for name in [*self._table.columns, *LOG_FIELDS]}
        return self.local({**made, "_unchanged": pa.array(unchanged, kind)})

    def _filled(self, fills: Mapping[str, Fill]) -> pa.Table:
        """Return the rows with the values of ``fills``."""
        rows, count = self._read, self._read.num_rows
        base = self._base_values(fills)
        for name, fill in fills.items():
            at, column, sources = np.arange(count), rows.column(name), fill.sources
            if name in base:
                slots, values = base[name]
                # values of the base follow the rows' own, so that one take serves both
                column = pa.chunked_array([*column.chunks, *values.cast(column.type).chunks])
                asks = fill.asked >= 0
                sources = np.where(
                    asks & (slots[fill.asked] >= 0), count + slots[fill.asked], sources
                )
            at[fill.rows] = sources
            column = column.take(pa.array(at, mask=at < 0))
            number = rows.schema.get_field_index(name)
            rows = rows.set_column(number, rows.schema.field(number), column)
        return rows

    def _base_values(
        self, fills: Mapping[str, Fill]
    ) -> dict[str, tuple[Integers, pa.ChunkedArray]]:
        """Return by column base values, and each row's by number.

        The number is -1 where the base has none.
        """
        asked = {name: fill.asked[fill.asked >= 0] for name, fill in fills.items()}
        # no question means no Spark job
        names = [name for name, rows in asked.items() if len(rows)]
        if not names:
            return {}
        found = self._found(np.unique(np.concatenate([asked[name] for name in names])), names)
        slots = np.full(self._read.num_rows, -1)
        slots[found.column(temp("row")).to_numpy()] = np.arange(found.num_rows)
        return {name: (slots, found.column(temp(f"was{n}"))) for n, name in enumerate(names)}

    # --- rows of the base -------------------------------------------------------------------------

    def _live_keys(self, rows: Integers) -> Flags:
        """Return whether a live base row has each key."""
        asked = rows
        if self._table.mode.deletes == "kept":  # an INSERT meets only deleted rows
            log = self._log
            asked = rows[log.puts[rows] & (log.positions[3][rows] == 1)]
        if not len(asked):
            return np.zeros(len(rows), bool)
        return np.isin(rows, self._found(asked, ()).column(temp("row")).to_numpy())

    def _found(self, rows: Integers, names: Sequence[str]) -> pa.Table:
        """Return the rows of `lookup`, with the numbers ``rows`` as ``row``.

        If the keys are few, a condition lists them: the base skips files, and there is nothing to
        join.
        """
        key, row, numbers = self._table.key, temp("row"), dict[Any, int]()
        if len(rows) <= LISTED and not any(each.kind.startswith("{") for each in self._key):
            at = pa.array(rows)
            values = (self._read.column(each.name).take(at).to_pylist() for each in self._key)
            numbers = dict(zip(zip(*values, strict=True), rows.tolist(), strict=True))
        listed = one_of(numbers, key, self._table.columns)
        if listed is None:
            return self.lookup(rows, names, {row: rows}).toArrow()
        was = (f"{quoted(name)} AS {temp(f'was{n}')}" for n, name in enumerate(names))
        found = self._base().where(listed).selectExpr(*map(quoted, key), *was).toArrow()
        keys = zip(*(found.column(n).to_pylist() for n in range(len(key))), strict=True)
        return found.append_column(row, pa.array([numbers[each] for each in keys], pa.int64()))

    def lookup(self, rows: Integers, names: Sequence[str], more: Mapping[str, Array]) -> DataFrame:
        """Return rows of the base under the keys of ``rows``.

        The result has ``more`` columns of these rows, and the columns ``names`` as ``was`` 0, 1, ….
        """
        asked = self.local({**self.keys(rows), **more}, self.kinds)
        was = (f"{quoted(name)} AS {temp(f'was{n}')}" for n, name in enumerate(names))
        own = (f"{each.sql} AS {temp(f'of{n}')}" for n, each in enumerate(self._key))
        base = self._base().selectExpr(*own, *was)
        # a key value that the column cannot hold is stored as null
        same = " AND ".join(
            f"{temp(f'of{n}')} <=> {temp(f'key{n}')}" for n in range(len(self._key))
        )
        asked = F.broadcast(asked) if len(rows) <= BROADCAST else asked
        found = base.join(asked, F.expr(same))
        return found.select(*more, *(temp(f"was{n}") for n in range(len(names))))

    def keys(self, rows: Integers) -> dict[str, pa.ChunkedArray]:
        at = pa.array(rows)
        keys = ((temp(f"key{n}"), each.name) for n, each in enumerate(self._key))
        return {name: self._read.column(column).take(at) for name, column in keys}

    def local(
        self, columns: Mapping[str, Any] | pa.Table, kinds: Mapping[str, str] | None = None
    ) -> DataFrame:
        """Return ``columns`` as a Spark frame.

        ``kinds`` are the types of temporary columns, if not numbers of rows or flags.
        """
        rows = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
        own = {**self._table.columns, **LOG_FIELDS, **(kinds or {})}
        rest = {True: '"boolean"', False: '"long"'}
        types = {
            field.name: own.get(field.name) or rest[pa.types.is_boolean(field.type)]
            for field in rows.schema
        }
        return frame_of(self._spark, rows, types)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The types of keys and positions under their temporary names."""
        positions = {temp(f"at{n}"): LOG_FIELDS[name] for n, name in enumerate(ORDER)}
        return positions | {temp(f"key{n}"): each.kind for n, each in enumerate(self._key)}

    # --- identities of rows -----------------------------------------------------------------------

    @property
    def count(self) -> int:
        return int(self._read.num_rows)

    @cached_property
    def has_own_positions(self) -> bool:
        """Whether no two rows have one position."""
        return bool(numbered(self._log.positions).max(initial=-1) == self.count - 1)

    @cached_property
    def numbers(self) -> Integers:
        """Numbers, equal for rows of one position and key."""
        return numbered((*self._log.positions, self._log.keys))

    def identities(self, rows: Integers, more: Mapping[str, Array], *, keys: bool) -> pa.Table:
        """Return the positions of ``rows``, their ``keys``, and ``more`` columns."""
        positions = {
            temp(f"at{n}"): position[rows] for n, position in enumerate(self._log.positions)
        }
        return pa.table({**positions, **(self.keys(rows) if keys else {}), **more})

    def same(self, names: Sequence[str]) -> str:
        """Return the condition that ``names`` hold a row's identity."""
        there = {temp(f"at{n}"): name for n, name in enumerate(ORDER)}
        there |= {temp(f"key{n}"): each.sql for n, each in enumerate(self._key)}
        return " AND ".join(
            f"{sql} <=> {quoted(name)}" for name, sql in there.items() if name in names
        )


# --- sets whose values Spark moves --------------------------------------------------------------------


class _LargeSet:
    """Many rows, as one set or in slices.

    The driver reads their keys and positions only. A position identifies a row. Rows of a snapshot
    share one, and need their keys as well.
    """

    def __init__(self, given: LoggedChanges, read: pa.Table | None) -> None:
        self._given, self._table, self._changes = given, given.table, given.changes
        self._rows, self._read = given.rows(), read
        self._unsent = unsent_columns(given.table, given.changes)
        # Identities of rows that remain as they are, or else of all other rows.
        self._listed: list[pa.Table] = []
        self._lists_others = True
        # Identities of rows that get values, and of rows that have these values.
        self._targets: list[pa.Table] = []
        self._sources: list[pa.Table] = []
        self._base_values: list[DataFrame] = []
        self._count, self._slices = 0, 1

    def last_rows(self) -> DataFrame:
        for part in self._parts():
            self._add(part, *part.net.last_rows())
        own = map(column_of, [*self._table.columns, *self._table.mode.extra])
        is_gone = (column_of("_op") == F.lit("d")).alias(GONE)
        return self._moved().select(*own, is_gone)

    def carried(self) -> DataFrame:
        for part in self._parts():
            self._add(part, np.arange(part.count), part.net.carried())
        return self._moved()

    # --- keys and positions -----------------------------------------------------------------------

    def _parts(self) -> Iterator[_Set]:
        """Yield the rows, or slices of their keys."""
        if self._read is not None:
            yield _Set(self._given, self._read)
            return
        self._slices = max(1, -(-sum(change.rows for change in self._changes) // SLICE))
        # values go from key to key, so rows of changed keys are not sliced
        if self._unsent and any(change.key_changes for change in self._changes):
            self._slices = 1
        key = [
            _key_column(temp(f"of{n}"), name, self._table.columns[name])
            for n, name in enumerate(self._table.key)
        ]
        keys = (f"{each.sql} AS {quoted(each.name)}" for each in key)
        rows = self._rows.selectExpr(*keys, *ORDER, "_op", "_unchanged")
        part = F.pmod(F.xxhash64(*(column_of(each.name) for each in key)), F.lit(self._slices))
        for number in range(self._slices):
            # truncates have no key, and concern all
            found = (
                rows if self._slices == 1 else rows.where((part == number) | (F.col("_op") == "t"))
            )
            yield _Set(self._given, found.toArrow(), key)

    def _add(self, part: _Set, rows: Integers, fills: Mapping[str, Fill]) -> None:
        """Add the remaining ``rows`` of ``part``, with their fills."""
        self._part = part
        as_is, missing = np.zeros((2, part.count), bool)
        as_is[rows] = True
        for fill in fills.values():
            missing[fill.rows] = True
        as_is &= ~missing
        if not part.has_own_positions and part.numbers.max() < part.count - 1:
            # of rows with one position and one key, which a snapshot read twice, any one will do
            as_is = np.isin(part.numbers, part.numbers[as_is])
            self._rows = self._rows.dropDuplicates([*ORDER, *self._table.key])
        if not self._listed:
            # Spark gets the shorter list
            self._lists_others = 2 * int(as_is.sum()) >= part.count
        self._listed.append(self._identities(np.flatnonzero(as_is ^ self._lists_others)))
        if fills:
            self._add_values(np.flatnonzero(missing), fills)
        self._count += part.count

    def _add_values(self, targets: Integers, fills: Mapping[str, Fill]) -> None:
        """Add the ``targets``, and the positions of their values."""
        part, numbers = self._part, {name: n for n, name in enumerate(self._unsent)}
        lacks = {
            temp(f"lacks{n}"): np.isin(targets, fills[name].rows if name in fills else ())
            for name, n in numbers.items()
        }
        # numbers of rows differ between slices
        row, column = temp("row"), temp("column")
        self._targets.append(self._identities(targets, {row: targets + self._count, **lacks}))
        each = [
            (fill.rows, fill.sources, fill.asked, np.full(len(fill.rows), numbers[name]))
            for name, fill in fills.items()
        ]
        rows, sources, asked, columns = map(np.concatenate, zip(*each, strict=True))
        to = {row: rows + self._count, column: columns}
        has, asks = sources >= 0, asked >= 0
        moved = {name: values[has] for name, values in to.items()}
        self._sources.append(self._identities(sources[has], moved))
        if asks.any():
            moved = {name: values[asks] for name, values in to.items()}
            self._base_values.append(part.lookup(asked[asks], self._unsent, moved))

    def _identities(self, rows: Integers, more: Mapping[str, Array] | None = None) -> pa.Table:
        keys = self._slices > 1 or not self._part.has_own_positions
        return self._part.identities(rows, more or {}, keys=keys)

    # --- frames -----------------------------------------------------------------------------------

    def _moved(self) -> DataFrame:
        """Return the rows that remain, with their values."""
        rows = self._joined(self._listed, "left_anti" if self._lists_others else "left_semi")
        return rows.unionByName(self._filled()) if self._targets else rows

    def _filled(self) -> DataFrame:
        """Return the rows that get values."""
        numbers = {name: n for n, name in enumerate(self._unsent)}
        row, column = temp("row"), column_of(temp("column"))
        there = (column_of(name).alias(temp(f"was{n}")) for name, n in numbers.items())
        found = self._joined(self._sources, "inner").select(row, temp("column"), *there)
        for base in self._base_values:
            found = found.unionByName(base)
        if len(numbers) > 1:  # the values of a row's columns are in different rows
            each = (
                F.first(F.when(column == n, column_of(temp(f"was{n}"))), ignorenulls=True).alias(
                    temp(f"was{n}")
                )
                for n in numbers.values()
            )
            found = found.groupBy(row).agg(*each)
        rows = self._joined(self._targets, "inner").join(found, [row], "left")
        for name, n in numbers.items():
            lacks, value = column_of(temp(f"lacks{n}")), column_of(temp(f"was{n}"))
            # a filled value is no longer unsent
            rest = F.array_remove("_unchanged", name)
            rows = rows.withColumns(
                {
                    name: F.when(lacks, value).otherwise(column_of(name)),
                    "_unchanged": F.when(lacks, rest).otherwise(F.col("_unchanged")),
                }
            )
        return rows.select(*map(column_of, self._rows.columns))

    def _joined(
        self, tables: Sequence[pa.Table], how: Literal["inner", "left_semi", "left_anti"]
    ) -> DataFrame:
        """Return the rows that ``tables`` identify, or all others."""
        listed = pa.concat_tables(tables)
        if not listed.num_rows and how == "left_anti":
            return self._rows
        names = listed.column_names
        frame = self._part.local(dict(zip(names, listed.columns, strict=True)), self._part.kinds)
        frame = F.broadcast(frame) if listed.num_rows <= BROADCAST else frame
        return self._rows.join(frame, F.expr(self._part.same(names)), how)


def _key_column(name: str, column: str, kind: str) -> KeyPart:
    # not every release of Spark gives Arrow times of day and intervals
    if "time(" in kind or "interval" in kind:
        return KeyPart(name, f"CAST({quoted(column)} AS STRING)", '"string"')
    return KeyPart(name, quoted(column), kind)
