"""Rows of small files, which the driver reads and writes.

A Spark plan for a few rows costs ten times as much as a file of pyarrow's with its commit, nearly all
of it for analysis and scheduling. Rows of a small table are replaced by writing its files again, so
nothing is left to compact.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyarrow import compute as pc

from waltap.base.files.durable_file import UNREADABLE
from waltap_spark.compact.small_sets import LARGE
from waltap_spark.schema.schema import digits_of

# Bytes of a table whose files are written again where a few of its rows change. Marking the old rows
# would leave one more small file and its marks, and take up to eight Spark jobs. Old files stay for
# the retention: with a commit every four seconds these are at most 5 GB a day.
SMALL_TABLE: Final = 256 << 10

# Small files of a table that are joined, and the bytes below which a file is small.
FILES: Final = 20
SMALL_FILE: Final = 64 << 10

# Rows of a file that are read at once.
BATCH: Final = 16_384


# Spark's types without parts.
ATOMS: Final = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

# Notes of a file whose old dates are in the Julian calendar.
LEGACY: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")

log = logging.getLogger(__name__)

# A commit to do, or the writes of a step.
Action = Callable[[], object]

File = TypeVar("File")


def atom_of(kind: str) -> pa.DataType:
    """Return a simple Spark type in Arrow. Raises: KeyError."""
    digits = digits_of(kind)
    return ATOMS[kind] if digits is None else pa.decimal128(*digits)


@dataclass(frozen=True, slots=True)
class FileSchema:
    """A table's id, and its columns in Arrow and in files."""

    table: str
    logical: pa.Schema
    physical: pa.Schema

    def physical_rows(self, rows: pa.Table) -> pa.Table | None:
        """Return ``rows`` as in files; None if they do not fit.

        Missing columns are null.
        """
        if not set(rows.column_names) <= set(self.logical.names):
            return None
        return self._fitting(rows, self.logical, widened=False)

    def file_rows(self, rows: pa.Table) -> pa.Table | None:
        """Return ``rows`` with the table's columns, None if unfit.

        The file may be older than a column, and than a wider type.
        """
        about = rows.schema.metadata or {}
        if any(name in about for name in LEGACY):
            return None
        if rows.schema.equals(self.physical):
            return rows.cast(self.physical)
        return self._fitting(rows, self.physical, widened=True)

    def _fitting(self, rows: pa.Table, schema: pa.Schema, *, widened: bool) -> pa.Table | None:
        found = []
        for field in schema:
            if field.name not in rows.column_names:
                found.append(pa.nulls(rows.num_rows, field.type))
                continue
            column = rows.column(field.name)
            if not column.type.equals(field.type):
                atoms = not (pa.types.is_nested(column.type) or pa.types.is_nested(field.type))
                if not (_alike(column.type, field.type) or (widened and atoms)):
                    return None
                column = column.cast(field.type)
            found.append(column)
        batches = pa.table(found, schema=schema).to_batches()
        return pa.Table.from_batches(
            [pa.record_batch(_Renamed(batch, self.physical)) for batch in batches],
            schema=self.physical,
        )


class DriverTable(Protocol):
    """A table with driver-written files and the format's commits."""

    def stored(self, rows: pa.Table) -> pa.Table | None:
        """Return ``rows`` as in files; None if Spark must write them."""
        ...

    def adding(self, rows: pa.Table, *, replaces: bool) -> Action | None:
        """Write ``rows`` as a file; return the commit that adds them.

        ``replaces``: they replace all rows.
        """
        ...

    def replacing(self, key: Sequence[str], rows: pa.Table, gone: pa.Array) -> Action | None:
        """Rewrite the files with the keys of ``rows``; return the commit.

        ``rows``, ``gone`` and None: as `without_keys`.
        """
        ...


class _Renamed:
    """A batch under other column and field names, uncopied."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return the batch with the schema, by Arrow's C interface."""
        _schema, array = self._batch.__arrow_c_array__()
        return self._schema.__arrow_c_schema__(), array


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two types have the same values.

    Names of list items may differ.
    """
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _alike(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _alike(one.key_type, other.key_type) and _alike(one.item_type, other.item_type)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        names = [one.field(n).name for n in range(one.num_fields)]
        return names == [other.field(n).name for n in range(other.num_fields)] and all(
            _alike(one.field(n).type, other.field(n).type) for n in range(one.num_fields)
        )
    return bool(one.equals(other))


@contextlib.contextmanager
def left_to_spark(at: str) -> Iterator[None]:
    """End the block where Spark must write the table ``at``.

    This is a library of another release, or a file or value that Arrow does not convert. The block
    commits nothing: if the answer was lost, rows that Spark wrote would be there twice.
    """
    try:
        yield
    except Py4JJavaError:
        raise
    except (Py4JError, pa.ArrowException, *UNREADABLE) as error:
        log.debug("%s is written by Spark: %s", at, error)


def few_rows(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    """Return a file's rows; None if none or over `LARGE`."""
    found, size = [], 0
    for batch in batches:
        size += batch.nbytes
        if size > LARGE:
            return None
        found.append(batch)
    return pa.Table.from_batches(found) if found else None


def without_keys(
    schema: FileSchema,
    files: Iterable[tuple[File, pa.Table | None]],
    key: Sequence[str],
    rows: pa.Table,
    gone: pa.Array,
) -> tuple[list[File], pa.Table] | None:
    """Return files with keys of ``rows``, and remaining rows.

    ``files``: each with its rows, as in `FileSchema.physical`. ``rows``: one for each changed key;
    ``gone`` flags those to remove. None: a file or a key is of another kind, or nothing changes.
    """
    physical = [schema.physical.field(schema.logical.get_field_index(name)) for name in key]
    if any(pa.types.is_floating(each.type) or pa.types.is_nested(each.type) for each in physical):
        return None  # 0 and -0 are one key, and NaN is a key
    keys = rows.select([each.name for each in physical])
    remaining: list[pa.Table] = []
    old: list[File] = []
    for file, own in files:
        if own is None:
            return None
        rest = own.filter(pc.invert(_matching(own, keys)))
        if rest.num_rows < own.num_rows:
            old.append(file)
            remaining.append(rest)
    made = pa.concat_tables([*remaining, rows.filter(pc.invert(gone))])
    return (old, made) if old or made.num_rows else None


def _matching(rows: pa.Table, keys: pa.Table) -> pa.ChunkedArray:
    """Return whether the key of each row is one of ``keys``."""
    names = keys.column_names
    columns = ((rows.column(name), keys.column(name).combine_chunks()) for name in names)
    found = functools.reduce(pc.and_, (pc.is_in(own, value_set=each) for own, each in columns))
    if len(names) == 1:
        return found
    # each column has such a value, and the row may combine two keys
    at = pc.indices_nonzero(found)
    wanted = set(_tuples(keys))
    few = rows.select(names).take(at)
    equal = [
        number for number, key in zip(at.to_pylist(), _tuples(few), strict=True) if key in wanted
    ]
    mask = np.zeros(rows.num_rows, bool)
    mask[equal] = True
    return pa.chunked_array([pa.array(mask)])


def _tuples(rows: pa.Table) -> Iterator[tuple[object, ...]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)
