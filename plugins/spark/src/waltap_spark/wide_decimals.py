"""Decimals of more than 38 digits, which Spark does not read: copies of segments with text in their place.

The change log writes none unless it is told to.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltap.files.store import Store
    from waltap_spark.output import Output
    from waltap_spark.plan import Group

__all__ = ["make_readable"]


def make_readable(
    store: "Store", output: "Output", group: "Group", folder: Callable[[], str]
) -> None:
    """Copy the segments of ``group`` to a ``folder`` of ``output``, where Spark cannot read them; once."""
    if group.converted or not any("decimal256" in each.arrow for each in group.columns):
        return
    import pyarrow as pa
    from pyarrow import parquet

    copies = folder()
    for number, segment in enumerate(group.segments):
        rows = store.read_parquet(segment)
        for at, column in enumerate(rows.schema):
            if "decimal256" in str(column.type):
                kind = pa.list_(pa.string()) if pa.types.is_list(column.type) else pa.string()
                rows = rows.set_column(at, column.name, rows.column(at).cast(kind))
        path = f"{copies}/{number}.parquet"
        with output.store.writing(path), output.store.create(path) as file:
            parquet.write_table(rows, file)
        group.converted.append(output.uri(path))
