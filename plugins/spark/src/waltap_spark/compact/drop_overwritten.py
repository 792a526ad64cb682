"""Compact large plain sets by dropping overwritten rows.

To find the last row of each key, Spark would shuffle and sort all rows with all their values.
Where the server sent every value, keys and positions alone decide. The driver reads them by
columns and gives Spark the positions of the overwritten rows, which are usually few. Spark then
reads the rows without a shuffle. Other sets go through `waltap_spark.compact.compaction`.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from waltap.base.files.errors import FilesUnavailable
from waltap_spark.planning.column_identity import file_column
from waltap_spark.planning.temp_columns import gone, unlike
from waltap_spark.schema.expression import column_of
from waltap_spark.schema.schema import LOG_FIELDS, struct_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from waltap.base.files.store import FileStore
    from waltap_spark.planning.plan import SegmentGroup
    from waltap_spark.state.output import TableState

    Flags = NDArray[np.bool_]
    Whole = NDArray[np.integer[Any]]


log = logging.getLogger(__name__)

# Most bytes of keys and positions that the driver reads: a million rows with short keys.
MOST: Final = 32 << 20

# Most positions that the driver sends to Spark.
JOINED: Final = 200_000

# Columns that order rows of one epoch.
PLACE: Final = ("_commit_lsn", "_seq", "_sub")

# Bytes of those columns in a row of a segment.
PLACE_BYTES: Final = 16

WHOLE: Final = ('"byte"', '"short"', '"integer"', '"long"')
# Types, besides decimals, whose values Arrow and Spark compare alike.
# Floating point is not among them: Spark alone takes 0 and -0 for one key.
ALIKE: Final = (
    *WHOLE,
    '"string"',
    '"boolean"',
    '"date"',
    '"timestamp"',
    '"timestamp_ntz"',
    '"binary"',
)


def last_rows(
    table: "TableState", group: "SegmentGroup", store: "FileStore", rows: "DataFrame"
) -> "DataFrame | None":
    """Return the result of `compaction.compacted` for plain ``rows``.

    ``rows`` are the rows of ``group`` with the columns of ``table``. None means that the driver
    cannot decide it. Spark's own plan reports damaged segments.
    """
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
        log.debug("%s is compacted by Spark: %s", table.name, error)
        return None
    kept = None if read is None or found is None else _left_out(rows, read, found)
    if kept is None:
        return None
    from pyspark.sql import functions as F  # noqa: N812

    own = map(column_of, [*table.columns, *table.mode.extra])
    return kept.select(*own, (column_of("_op") == F.lit("d")).alias(gone(table)))


def _is_plain(group: "SegmentGroup") -> bool:
    """Return whether segments have the rows and the last one decides."""
    there = group.segments and not group.converted and not group.external_snapshot
    whole = not group.unchanged and not group.moved and not group.key_reused
    return bool(there and whole and "t" not in group.operations)


def _stored_key(table: "TableState", group: "SegmentGroup") -> list[str] | None:
    """Return the key's column names in segments.

    None means that segments lack a key column. It also means that different values there may
    become equal in the table or in Spark.
    """
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
    """Return the keys and positions of ``group``.

    None means that they are too many, or that timestamps have units that Spark does not have.

    Raises: FilesUnavailable, OSError, ArrowException.
    """
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
    # Spark has microseconds only: keys that differ below them are equal there
    exact = all(not pa.types.is_timestamp(kind) or kind.unit == "us" for kind in read.schema.types)
    placed = not any(read.column(name).null_count for name in PLACE)
    return read if exact and placed and read.num_rows == group.rows else None


def _left_out(rows: "DataFrame", read: "pa.Table", found: "Flags") -> "DataFrame | None":
    """Return ``rows`` without the overwritten rows ``found`` of ``read``.

    None means that too many positions would have to be sent.
    """
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812

    count = int(found.sum())
    if not count:
        return rows
    # Spark gets the shorter list: the rows to drop or the rows to keep
    fewer = count <= len(found) - count
    listed = read.select(PLACE).filter(pa.array(found if fewer else ~found))
    if listed.num_rows > JOINED:
        return None
    own = unlike(rows.columns)
    named = [f"{own}{name}" for name in PLACE]
    struct = struct_of({f"{own}{name}": LOG_FIELDS[name] for name in PLACE})
    places = rows.sparkSession.createDataFrame(listed.rename_columns(named), struct)
    same = [F.col(name) == F.col(other) for name, other in zip(PLACE, named, strict=True)]
    return rows.join(F.broadcast(places), same, "left_anti" if fewer else "left_semi")


def superseded(keys: "Sequence[pa.ChunkedArray]", places: "Sequence[Whole]") -> "Flags | None":
    """Return for each row whether a later row has its key.

    ``places`` are the columns that order rows. None means that an overwritten row has the same
    position as another row, so that a position does not identify it.
    """
    import numpy as np

    codes = _codes(keys)
    same, ahead = _steps(places)
    order = None
    # segments are in order as a rule, and need no sort
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
    """Compare each row's position with the one before.

    The first flags mark equal positions, the second equal or later ones.
    """
    import numpy as np

    same = np.ones(max(0, len(places[0]) - 1), bool)
    ahead = np.zeros_like(same)
    for place in places:
        ahead |= same & (place[1:] > place[:-1])
        same &= place[1:] == place[:-1]
    return same, ahead | same


def _codes(keys: "Sequence[pa.ChunkedArray]") -> "Whole":
    """Return numbers that are equal where keys are equal.

    They are below the number of rows. Nulls are one value.

    Raises: ArrowNotImplementedError.
    """
    import pyarrow as pa

    codes: Whole | None = None
    for key in keys:
        encoded = key.combine_chunks().dictionary_encode(null_encoding="encode")
        if codes is not None:
            # encoding pairs again keeps the numbers small, whatever the count of key columns
            pairs = codes.astype("int64") * len(encoded.dictionary) + encoded.indices.to_numpy()
            encoded = pa.array(pairs).dictionary_encode()
        codes = encoded.indices.to_numpy()
    assert codes is not None
    return codes
