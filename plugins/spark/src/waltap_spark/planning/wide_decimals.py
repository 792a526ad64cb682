"""Decimals of more than 38 digits, which Spark does not read: copies of segments with text in their place.

The change log writes none unless it is told to.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from waltap.base.files.store import FileStore
    from waltap_spark.planning.plan import SegmentGroup
    from waltap_spark.state.output import SparkOutput

__all__ = ["make_readable", "text_of"]


def text_of(kind: "pa.DataType") -> "pa.DataType":
    """Return ``kind`` with text in place of wide decimals, also in lists, structs and maps."""
    import pyarrow as pa

    if pa.types.is_decimal256(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(text_of(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(text_of(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, text_of(kind.item_type))
    return kind


def make_readable(
    store: "FileStore", output: "SparkOutput", group: "SegmentGroup", folder: Callable[[], str]
) -> None:
    """Copy the segments of ``group`` to a ``folder`` of ``output``, where Spark cannot read them; once."""
    if group.converted or not any("decimal256" in each.arrow for each in group.columns):
        return
    from pyarrow import parquet

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
