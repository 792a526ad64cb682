"""Many plain changes are settled by leaving rows out: those that a later row of their key supersedes.

To have Spark find the last row of every key is to shuffle and sort all rows, with all their values. Where
the server sent every value, keys and positions alone decide. They are read here, by columns; Spark then
reads the rows where they lie, and leaves out the superseded ones by their positions, which are few as a
rule. What is not plain, or is too much to hold, `waltap_spark.compaction` has Spark find out.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from waltap.base.files.errors import FilesUnavailable
from waltap_spark.column_identity import file_column
from waltap_spark.expression import column_of
from waltap_spark.schema import LOG_FIELDS, struct_of
from waltap_spark.temp_columns import gone, unlike

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from waltap.base.files.store import FileStore
    from waltap_spark.output import TableState
    from waltap_spark.plan import SegmentGroup

    Flags = NDArray[np.bool_]
    Whole = NDArray[np.integer[Any]]

__all__ = ["last_rows", "superseded"]

log = logging.getLogger(__name__)

MOST: Final = 32 << 20
"""Bytes of keys and positions, no more than which are read here: a million rows with short keys."""

JOINED: Final = 200_000
"""Positions, no more than which Spark is told."""

PLACE: Final = ("_commit_lsn", "_seq", "_sub")
"""What rows of one epoch are put in order by."""

PLACE_BYTES: Final = 16
"""What they take in a segment."""

WHOLE: Final = ('"byte"', '"short"', '"integer"', '"long"')
ALIKE: Final = (
    *WHOLE,
    '"string"',
    '"boolean"',
    '"date"',
    '"timestamp"',
    '"timestamp_ntz"',
    '"binary"',
)
"""Types, besides decimals, of which Arrow and Spark hold the same values to be equal. The two zeros of a
floating point are one key for Spark alone."""


def last_rows(
    table: "TableState", group: "SegmentGroup", store: "FileStore", rows: "DataFrame"
) -> "DataFrame | None":
    """Return what `settle.settled` does of ``rows``, those of ``group`` with the columns of ``table``;
    None where that cannot be told here. What is wrong with a segment is for Spark to tell."""
    import pyarrow as pa

    names = _stored_key(table, group)
    if names is None or not _is_plain(group):
        return None
    try:
        read = _read(store, group, names)
        found = None
        if read is not None:
            places = [read.column(name).to_numpy() for name in PLACE]
            found = superseded(read.select(names).columns, places)
    except (FilesUnavailable, OSError, pa.ArrowException) as error:
        log.debug("%s is settled by Spark: %s", table.name, error)
        return None
    kept = None if read is None or found is None else _left_out(rows, read, found)
    if kept is None:
        return None
    from pyspark.sql import functions as F  # noqa: N812

    own = map(column_of, [*table.columns, *table.mode.extra])
    return kept.select(*own, (column_of("_op") == F.lit("d")).alias(gone(table)))


def _is_plain(group: "SegmentGroup") -> bool:
    """Tell whether the last row of a key is all there is to know of it, and rows are in the segments."""
    there = group.segments and not group.converted and not group.elsewhere
    whole = not group.unchanged and not group.moved and not group.crossed
    return bool(there and whole and "t" not in group.operations)


def _stored_key(table: "TableState", group: "SegmentGroup") -> list[str] | None:
    """Return what segments call the key; None where they do not have it, or values that differ in them are
    perhaps alike in the table, or for Spark."""
    has, ids = table.versions[group.fingerprint], table.version_ids.get(group.fingerprint, {})
    stored = {new: name for name, new in group.called.items()}
    found = []
    for name in table.key:
        kind, called = table.columns[name], file_column(table, has, ids, name)
        had = "" if called is None else has[called]
        if called is None or not (had == kind or (had in WHOLE and kind in WHOLE)):
            return None
        if kind not in ALIKE and not kind.startswith('"decimal('):
            return None
        found.append(stored.get(called, called))
    return found or None


def _read(store: "FileStore", group: "SegmentGroup", names: Sequence[str]) -> "pa.Table | None":
    """Return keys and positions of the rows of ``group``; None where they are too many, or in units that
    Spark does not have. Raises: FilesUnavailable, OSError, ArrowException."""
    import pyarrow as pa

    if group.rows * PLACE_BYTES > MOST:
        return None
    parts, left, columns = [], MOST, [*names, *PLACE]
    for path in group.segments:
        part = store.parquet_columns(path, columns, left)
        if part is None:
            return None
        parts.append(part)
        left -= part.nbytes
    read = pa.concat_tables(parts)
    exact = all(not pa.types.is_timestamp(kind) or kind.unit == "us" for kind in read.schema.types)
    placed = not any(read.column(name).null_count for name in PLACE)
    return read if exact and placed and read.num_rows == group.rows else None


def _left_out(rows: "DataFrame", read: "pa.Table", found: "Flags") -> "DataFrame | None":
    """Return ``rows`` without those of ``read`` that are ``found``: what is less is told to Spark, they or
    the others. None where both are too many."""
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812

    count = int(found.sum())
    if not count:
        return rows
    fewer = count <= len(found) - count
    told = read.select(PLACE).filter(pa.array(found if fewer else ~found))
    if told.num_rows > JOINED:
        return None
    own = unlike(rows.columns)
    named = [f"{own}{name}" for name in PLACE]
    struct = struct_of({f"{own}{name}": LOG_FIELDS[name] for name in PLACE})
    places = rows.sparkSession.createDataFrame(told.rename_columns(named), struct)
    same = [F.col(name) == F.col(other) for name, other in zip(PLACE, named, strict=True)]
    return rows.join(F.broadcast(places), same, "left_anti" if fewer else "left_semi")


def superseded(keys: "Sequence[pa.ChunkedArray]", places: "Sequence[Whole]") -> "Flags | None":
    """Tell of each row whether a later one has its key. ``places``: what rows are in order by, column by
    column. None where a row that is superseded is at the place of another."""
    import numpy as np

    codes = _codes(keys)
    same, ahead = _steps(places)
    order = None
    if not ahead.all():
        order = np.lexsort(places[::-1])
        codes, (same, _ahead) = codes[order], _steps([each[order] for each in places])
    numbers = np.arange(len(codes))
    last = np.zeros(len(codes), np.int64)
    np.maximum.at(last, codes, numbers)
    found: Flags = last[codes] != numbers
    if (same & (found[1:] | found[:-1])).any():
        return None
    if order is None:
        return found
    given = np.empty_like(found)
    given[order] = found
    return given


def _steps(places: "Sequence[Whole]") -> "tuple[Flags, Flags]":
    """Tell of each row but the first whether it is at the place of the one before, and whether it is
    there or behind."""
    import numpy as np

    same = np.ones(max(0, len(places[0]) - 1), bool)
    ahead = np.zeros_like(same)
    for place in places:
        ahead |= same & (place[1:] > place[:-1])
        same &= place[1:] == place[:-1]
    return same, ahead | same


def _codes(keys: "Sequence[pa.ChunkedArray]") -> "Whole":
    """Return numbers below that of the rows, which are equal where keys are. Nulls are one value.

    Raises: ArrowNotImplementedError.
    """
    import pyarrow as pa

    codes: Whole | None = None
    for key in keys:
        encoded = key.combine_chunks().dictionary_encode(null_encoding="encode")
        if codes is not None:
            pairs = codes.astype("int64") * len(encoded.dictionary) + encoded.indices.to_numpy()
            encoded = pa.array(pairs).dictionary_encode()
        codes = encoded.indices.to_numpy()
    assert codes is not None
    return codes
