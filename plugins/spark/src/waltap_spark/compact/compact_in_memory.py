"""Compact a small set of changes in the driver.

`waltap_spark.compact.compaction` compacts large sets with Spark. Its plan has a dozen stages, and each
takes longer than a small set needs in all.

Spark reads the changes once. Their positions and keys decide which change has each value
(`waltap_spark.compact.value_sources`). Values are addressed by number and never examined. Spark receives
a small table, and reads only values that the base alone has.
"""

import functools
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from waltap_spark.compact.compaction import after_last_truncate, compacted, with_moves
from waltap_spark.compact.small_sets import LARGE
from waltap_spark.compact.value_sources import (
    LogEvent,
    Place,
    ValueSource,
    ValueSources,
    exists_after,
)
from waltap_spark.errors import first_words
from waltap_spark.planning.temp_columns import gone, unlike
from waltap_spark.schema.expression import ORDER, column_of, long_bytes, one_of, quoted
from waltap_spark.schema.schema import LOG_FIELDS, struct_of
from waltap_spark.state.output import unpacked_in_all

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from waltap_spark.state.output import LogFacts, TableState


log = logging.getLogger(__name__)

# Most keys whose unsent values the driver reads; they may be long.
LOCAL_KEYS: Final = 1000

# Most changes that the driver compacts.
FEW: Final = 20_000


def moved(
    table: "TableState", changes: "Sequence[LogFacts]", rows: "DataFrame", base: "DataFrame"
) -> "DataFrame":
    """Fill in unsent values of rows whose key changed.

    Such a row keeps the values that it had under its earlier key. The result equals
    `compaction.with_moves`.
    """
    if not any(change.moved for change in changes):
        return rows
    spark = base.sparkSession
    found = _few(spark, table, changes, lambda: rows, lambda: base, lambda few: few.frame)
    return with_moves(table, changes, rows, base) if found is None else found


def compact(
    spark: "SparkSession",
    table: "TableState",
    changes: "Sequence[LogFacts]",
    rows: "Callable[[], DataFrame]",
    base: "Callable[[], DataFrame]",
    plainly: "Callable[[], DataFrame | None]" = lambda: None,
    *,
    read: "pa.Table | None" = None,
) -> "DataFrame":
    """Return one row for each key of ``rows``, as `compaction.compacted` does.

    Rows whose key changed have their earlier values. A truncate discards all rows before it.
    ``plainly`` is a cheaper way for large plain sets; it returns None where it does not apply.
    ``read`` are the rows where the driver has them already.
    """
    found = compact_small(spark, table, changes, rows, base, read=read)
    if found is None:
        found = plainly()
    if found is not None:
        return found
    return _compacted_by_spark(table, changes, rows(), base())


def _compacted_by_spark(
    table: "TableState", changes: "Sequence[LogFacts]", rows: "DataFrame", base: "DataFrame"
) -> "DataFrame":
    rows = with_moves(table, changes, rows, base)
    if any("t" in change.operations for change in changes):
        base, rows = base.limit(0), after_last_truncate(rows)
    return compacted(table, changes, rows, base)


def compact_small(
    spark: "SparkSession",
    table: "TableState",
    changes: "Sequence[LogFacts]",
    rows: "Callable[[], DataFrame]",
    base: "Callable[[], DataFrame]",
    *,
    read: "pa.Table | None" = None,
) -> "DataFrame | None":
    """Return the result of `compact` for one small table.

    None means that the changes are too many.
    """
    return _few(spark, table, changes, rows, base, _InMemoryRows.compacted, read)


def _few(
    spark: "SparkSession",
    table: "TableState",
    changes: "Sequence[LogFacts]",
    rows: "Callable[[], DataFrame]",
    base: "Callable[[], DataFrame]",
    made: "Callable[[_InMemoryRows], DataFrame]",
    read: "pa.Table | None" = None,
) -> "DataFrame | None":
    """Return the result of ``made``, or None where Spark must compact.

    None also means that Arrow cannot carry a type. For any other fault Spark's plan runs and
    reports the error.
    """
    import pyarrow as pa
    from pyspark.errors import PySparkException, PySparkTypeError, UnsupportedOperationException

    if not table.key or sum(change.rows for change in changes) > FEW:
        return None
    try:
        if read is None:
            # the rows are read into the driver's memory, so their size is checked first
            if not _are_light(table, changes, rows):
                return None
            names = [*table.columns, *LOG_FIELDS]
            read = rows().selectExpr(*map(quoted, names)).toArrow()
        if read.nbytes > LARGE:
            return None
        return made(_InMemoryRows(spark, table, changes, read, base))
    except (pa.ArrowNotImplementedError, PySparkTypeError, UnsupportedOperationException) as error:
        log.debug("%s is compacted by Spark: %s", table.name, error)
    except (pa.ArrowException, PySparkException) as error:
        _log_fallback(table.name, f"{type(error).__name__}: {first_words(error)}")
    return None


@functools.lru_cache(maxsize=1024)
def _log_fallback(table: str, problem: str) -> None:
    """Warn once that Spark compacts small sets of ``table``."""
    log.warning("%s: few changes are left to Spark, which is slower: %s", table, problem)


def _are_light(
    table: "TableState", changes: "Sequence[LogFacts]", rows: "Callable[[], DataFrame]"
) -> bool:
    """Return whether the values of ``rows`` fit into the driver.

    Spark computes the size where the change log does not have it: a few thousand rows may hold
    gigabytes.
    """
    from pyspark.sql import functions as F  # noqa: N812

    unpacked = unpacked_in_all(changes)
    if unpacked:
        return unpacked <= LARGE
    size = long_bytes(table.columns)
    return size is None or (rows().agg(F.sum(size)).collect()[0][0] or 0) <= LARGE


class _InMemoryRows:
    """Rows of the log in memory; events have row numbers."""

    def __init__(
        self,
        spark: "SparkSession",
        table: "TableState",
        changes: "Sequence[LogFacts]",
        rows: "pa.Table",
        base: "Callable[[], DataFrame]",
    ) -> None:
        self._spark, self._table, self._read, self._base = spark, table, rows, base
        # Whether a transaction deleted a key that it had inserted before.
        self._key_reused = any(change.key_reused for change in changes)
        self._moves = any(change.moved for change in changes)
        not_sent = dict.fromkeys(name for change in changes for name in change.unchanged)
        # Columns that some change did not send.
        self._partial = [name for name in not_sent if name not in table.key]
        self._truncates = _truncates(rows)
        # Keys used after a truncate; the base has no row for them.
        self._events, self._later = _events(table.key, rows, self._truncates)
        self._own = unlike([*table.columns, *LOG_FIELDS])

    # --- values of rows whose key changed ---------------------------------------------------------

    @cached_property
    def _origins(self) -> dict[str, dict[int, ValueSource]]:
        """Map columns and rows with changed keys to value sources."""
        if not self._moves or not self._partial:
            return {}
        found = ValueSources(self._events, key_reused=self._key_reused, live_keys=self._live_keys)
        each = {name: found.of(name) for name in self._partial}
        return {n: {o.move.number: o for o in origins} for n, origins in each.items() if origins}

    @cached_property
    def _rows(self) -> "pa.Table":
        """The rows, with the earlier values of rows whose key changed."""
        import pyarrow as pa

        rows = self._read
        if not self._origins:
            return rows
        from_base = self._from_base()
        for name, origins in self._origins.items():
            at: list[int | None] = list(range(rows.num_rows))
            column = rows.column(name)
            codes: dict[int, int] = {}
            if name in from_base:
                codes, values = from_base[name]
                # values of the base follow the log's own, so that one take serves both
                column = pa.chunked_array([*column.chunks, *values.cast(column.type).chunks])
            for number, origin in origins.items():
                if origin.source is not None:
                    at[number] = origin.source.number
                else:
                    found = codes.get(origin.leaving.key)
                    at[number] = None if found is None else rows.num_rows + found
            rows = _with(rows, name, column.take(pa.array(at, pa.int64())))
        # a filled value is no longer unsent
        unchanged = rows.column("_unchanged").to_pylist()
        for name, origins in self._origins.items():
            for number in origins:
                unchanged[number] = [each for each in unchanged[number] if each != name]
        return _with(rows, "_unchanged", pa.array(unchanged, rows.schema.field("_unchanged").type))

    def _from_base(self) -> "dict[str, tuple[dict[int, int], pa.ChunkedArray]]":
        """Return the base's values by column, and their numbers by key."""
        asked = {
            name: [
                each.leaving
                for each in origins.values()
                if each.source is None and each.leaving.key not in self._later
            ]
            for name, origins in self._origins.items()
        }
        # no question means no Spark job
        names = [name for name, events in asked.items() if events]
        if not names:
            return {}
        events = [event for name in names for event in asked[name]]
        found = self._found(events, names)
        distinct = found.column(self._called("code")).to_pylist()
        codes = {code: number for number, code in enumerate(distinct)}
        return {name: (codes, found.column(self._called("was", n))) for n, name in enumerate(names)}

    @cached_property
    def frame(self) -> "DataFrame":
        """The rows as a Spark frame, with all values filled in."""
        names = [*self._table.columns, *LOG_FIELDS]
        return self._local({name: self._rows.column(name) for name in names}, names)

    # --- one row for each key ---------------------------------------------------------------------

    def compacted(self) -> "DataFrame":
        """Return one row for each key, and its `gone` flag."""
        import pyarrow as pa

        rows, table = self._rows, self._table
        emptied = self._truncates[-1] if self._truncates else None
        keys: dict[int, list[LogEvent]] = {}
        for event in sorted(self._events, key=lambda event: event.place):
            if emptied is None or event.place > emptied:
                keys.setdefault(event.key, []).append(event)
        lasts: list[int | None] = []
        sources: dict[str, list[int | None]] = {name: [] for name in self._partial}
        for events in keys.values():
            there = [event for event in events if event.op != "d"]
            # such a transaction may report the delete after the row's insert
            last = there[-1:] if self._key_reused else events[-1:]
            lasts.append(last[0].number if last else None)
            for name, numbers in sources.items():
                brought = (each.number for each in reversed(there) if self._brings(each, name))
                numbers.append(next(brought, None))
        ends = [events[-1].number for events in keys.values()]
        named = [end if last is None else last for end, last in zip(ends, lasts, strict=True)]
        own = [*table.columns, *table.mode.extra]
        made: dict[str, Any] = {}
        for name in own:
            numbers = [*named] if name in table.key else sources.get(name, lasts)
            made[name] = rows.column(name).take(pa.array(numbers, pa.int64()))
        ended = self._ended(keys)
        made[gone(table)] = pa.array([ended[key] for key in keys], pa.bool_())
        # a row that is gone needs no values
        stays = [not ended[key] for key in keys]
        unchanged = {
            name: found
            for name, found in sources.items()
            if any(number is None and stay for number, stay in zip(found, stays, strict=True))
        }
        # a truncate leaves nothing in the base to read unsent values from
        if emptied is not None or not unchanged:
            return self._local(made, [*own, gone(table)])
        made[self._called("code")] = pa.array(list(keys), pa.int32())
        for n, found in enumerate(unchanged.values()):
            made[self._called("unchanged", n)] = pa.array([number is None for number in found])
        asked = [
            events[0]
            for events, stay, *found in zip(keys.values(), stays, *unchanged.values(), strict=True)
            if stay and None in found
        ]
        if len(asked) <= LOCAL_KEYS:
            return self._local(
                self._filled(made, list(keys), asked, unchanged), [*own, gone(table)]
            )
        return self._with_base_values(self._local(made, list(made)), asked, list(unchanged))

    def _filled(
        self,
        made: Mapping[str, Any],
        keys: Sequence[int],
        asked: "list[LogEvent]",
        unchanged: Mapping[str, Sequence[int | None]],
    ) -> dict[str, Any]:
        """Return ``made`` with values of the base.

        They fill in where ``unchanged`` has no number. One job reads them. A join would read them
        as often as the format evaluates its source.
        """
        import pyarrow as pa

        found = self._found(asked, list(unchanged))
        codes = {code: at for at, code in enumerate(found.column(self._called("code")).to_pylist())}
        filled = dict(made)
        for n, (name, numbers) in enumerate(unchanged.items()):
            own, was = made[name], found.column(self._called("was", n))
            at = [
                row if number is not None else len(keys) + codes[key] if key in codes else None
                for row, (key, number) in enumerate(zip(keys, numbers, strict=True))
            ]
            column = pa.chunked_array([*own.chunks, *was.cast(own.type).chunks], own.type)
            filled[name] = column.take(pa.array(at, pa.int64()))
        return filled

    def _with_base_values(
        self, frame: "DataFrame", asked: list[LogEvent], names: list[str]
    ) -> "DataFrame":
        """Return ``frame`` with values of the base where rows lack them.

        ``asked`` has an event for each such key, ``names`` the columns. The frame's ``unchanged``
        columns mark the rows.
        """
        from pyspark.sql import functions as F  # noqa: N812

        code, at = self._called("code"), self._called("at")
        was = self._lookup(asked, names).withColumnRenamed(code, at)
        joined = frame.join(F.broadcast(was), column_of(code) == column_of(at), "left")
        values = {
            name: F.when(
                column_of(self._called("unchanged", n)), column_of(self._called("was", n))
            ).otherwise(column_of(name))
            for n, name in enumerate(names)
        }
        own = [*self._table.columns, *self._table.mode.extra, gone(self._table)]
        return joined.select(*(values.get(name, column_of(name)).alias(name) for name in own))

    def _brings(self, event: LogEvent, name: str) -> bool:
        """Return whether a row has its own value of column ``name``."""
        return name not in event.unchanged or event.number in self._origins.get(name, ())

    def _ended(self, keys: Mapping[int, list[LogEvent]]) -> dict[int, bool]:
        """Return whether each key has no row after its events."""
        if not self._key_reused:
            return {key: events[-1].op == "d" for key, events in keys.items()}
        found = {key: exists_after(events) for key, events in keys.items()}
        # the events alone do not decide: the base knows whether the row was there before
        asked = [keys[key][0] for key, stays in found.items() if stays is None]
        there = self._live_keys(asked)
        return {key: not (key in there if stays is None else stays) for key, stays in found.items()}

    # --- rows of the base -------------------------------------------------------------------------

    def _live_keys(self, asked: Sequence[LogEvent]) -> set[int]:
        """Return the keys of ``asked`` with a source row in the base.

        ``asked`` are the first events of the keys.
        """
        asked = [event for event in asked if event.key not in self._later]
        if self._table.mode.deletes == "kept":  # an INSERT meets only deleted rows
            asked = [event for event in asked if event.arrives]
        if not asked:
            return set()
        return set(self._found(asked, ()).column(self._called("code")).to_pylist())

    def _found(self, asked: Iterable[LogEvent], names: Sequence[str]) -> "pa.Table":
        """Return the rows of `_lookup`, read by a condition if the keys are few.

        By a condition the base skips files, and there is nothing to join.
        """
        import pyarrow as pa

        asked, key = list(asked), self._table.key
        at = pa.array([event.number for event in asked], pa.int64())
        values = (self._read.column(name).take(at).to_pylist() for name in key)
        codes = dict(zip(zip(*values, strict=True), (each.key for each in asked), strict=True))
        listed = one_of(codes, key, self._table.columns)
        if listed is None:
            return self._lookup(asked, names).toArrow()
        was = {self._called("was", n): name for n, name in enumerate(names)}
        own = (f"{quoted(name)} AS {quoted(alias)}" for alias, name in was.items())
        found = self._base().where(listed).selectExpr(*map(quoted, key), *own).toArrow()
        keys = zip(*(found.column(n).to_pylist() for n in range(len(key))), strict=True)
        code = pa.array([codes[each] for each in keys], pa.int32())
        return found.append_column(self._called("code"), code)

    def _lookup(self, asked: Iterable[LogEvent], names: Sequence[str]) -> "DataFrame":
        """Return rows of the base under the keys of ``asked``.

        Column ``code`` is the key's number; the columns ``names`` are ``was`` 0, 1, ….
        """
        import pyarrow as pa
        from pyspark.sql import functions as F  # noqa: N812

        # a key value that the column cannot hold is stored as null
        key, numbers = self._table.key, {event.key: event.number for event in asked}
        at, code = pa.array(list(numbers.values()), pa.int64()), self._called("code")
        parts = {self._called("key", n): name for n, name in enumerate(key)}
        made = {part: self._read.column(name).take(at) for part, name in parts.items()}
        made[code] = pa.array(list(numbers), pa.int32())
        kinds = {part: self._table.columns[name] for part, name in parts.items()}
        keys = self._local(made, list(made), kinds)
        there = {self._called("of", n): name for n, name in enumerate(key)}
        was = {self._called("was", n): name for n, name in enumerate(names)}
        base = self._base().selectExpr(
            *(f"{quoted(name)} AS {quoted(own)}" for own, name in {**there, **was}.items())
        )
        same = " AND ".join(
            f"{quoted(of)} <=> {quoted(part)}" for of, part in zip(there, parts, strict=True)
        )
        found = base.join(F.broadcast(keys), F.expr(same))
        return found.selectExpr(quoted(code), *map(quoted, was))

    def _called(self, what: str, number: int = 0) -> str:
        """Return the name of a temporary column that the table lacks."""
        return f"{self._own}{what} {number}"

    def _local(
        self,
        columns: "Mapping[str, Any]",
        names: list[str],
        kinds: "Mapping[str, str] | None" = None,
    ) -> "DataFrame":
        """Return ``columns`` as a Spark frame.

        ``kinds`` are the types of columns that the table does not have.
        """
        import pyarrow as pa

        code = self._called("code")
        own = {code: '"integer"', **self._table.columns, **LOG_FIELDS, **(kinds or {})}
        struct = struct_of({name: own.get(name, '"boolean"') for name in names})
        rows = pa.table([columns[name] for name in names], names=names)
        return self._spark.createDataFrame(rows, struct)


def _with(rows: "pa.Table", name: str, column: "pa.ChunkedArray | pa.Array") -> "pa.Table":
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), column)


def _places(rows: "pa.Table") -> list[Place]:
    return list(zip(*(rows.column(name).to_pylist() for name in ORDER), strict=True))


def _truncates(rows: "pa.Table") -> list[Place]:
    """Return the positions of truncates in order."""
    ops = rows.column("_op").to_pylist()
    if "t" not in ops:
        return []
    return sorted(place for place, op in zip(_places(rows), ops, strict=True) if op == "t")


def _events(
    key: Sequence[str], rows: "pa.Table", truncates: Sequence[Place]
) -> tuple[list[LogEvent], set[int]]:
    """Return the events of ``rows``, and the keys after a truncate.

    Truncates have no key and are no events. A row after a truncate is another row than the one
    before it.

    Raises: ArrowNotImplementedError, where Arrow cannot compare keys.
    """
    codes = zip(*(_codes(rows.column(name)) for name in key), strict=True)
    ops, unchanged = rows.column("_op").to_pylist(), rows.column("_unchanged").to_pylist()
    keys: dict[tuple[int | None, ...], int] = {}
    events = []
    numbered = zip(codes, _places(rows), ops, unchanged, strict=True)
    for number, (code, place, op, names) in enumerate(numbered):
        if op != "t":
            era = bisect_left(truncates, place)
            # the same key before and after a truncate counts as two keys
            own = keys.setdefault((era, *code), len(keys))
            events.append(LogEvent(place, own, op, frozenset(names or ()), number))
    return events, {own for (era, *_code), own in keys.items() if era}


def _codes(column: "pa.ChunkedArray") -> list[int | None]:
    """Return numbers that are equal where the values are.

    Raises: ArrowNotImplementedError.
    """
    import pyarrow as pa
    from pyarrow import compute as pc

    if pa.types.is_floating(column.type):  # 0 and -0 are one key
        column = pc.add(column, pa.scalar(0.0, column.type))
    codes: list[int | None] = column.combine_chunks().dictionary_encode().indices.to_pylist()
    return codes
