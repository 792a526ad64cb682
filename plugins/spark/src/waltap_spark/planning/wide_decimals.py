"""Copy segments with decimals beyond Spark's 38 digits as text.

The change log has none by default.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from waltap.base.files.store import FileStore
from waltap_spark.planning.plan import SegmentGroup
from waltap_spark.state.output import SparkOutput


def text_of(kind: Any, *, times: bool = False) -> pa.DataType:
    """Return ``kind`` with text instead of wide decimals, also in nested types.

    ``kind`` is a type of Arrow. ``times``: and instead of times of day, which sessions read only
    with a setting.
    """
    if pa.types.is_decimal256(kind) or (times and pa.types.is_time(kind)):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(text_of(kind.value_type, times=times)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(text_of(field.type, times=times)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, text_of(kind.item_type, times=times))
    return kind


def make_readable(
    store: FileStore, output: SparkOutput, group: SegmentGroup, folder: Callable[[], str]
) -> None:
    """Copy the segments of ``group`` once, if needed."""
    # Once per group: several steps of a commit ask for it.
    if group.converted or not any("decimal256" in each.arrow for each in group.columns):
        return
    copies = folder()
    for number, segment in enumerate(group.segments):
        rows = store.read_parquet(segment)
        for at, column in enumerate(rows.schema):
            if "decimal256" in str(column.type):
                values = rows.column(at).cast(text_of(column.type))
                rows = rows.set_column(at, column.name, values)
        path = f"{copies}/{number}.parquet"
        with output.store.writing(path), output.store.create(path) as file:
            parquet.write_table(rows, file)
        group.converted.append(output.uri(path))
