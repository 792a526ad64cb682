"""Table formats: storage of a table's rows and history.

A plugin adds a format by `register_table_formats`, and implements `TableFormat`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltap_spark.formats.table_format import (
        CommitContext,
        GroupRows,
        TableChange,
        TableFormat,
        TableFormatContext,
        What,
    )

__all__ = ["CommitContext", "GroupRows", "TableChange", "TableFormat", "TableFormatContext", "What"]


def __getattr__(name: str) -> Any:
    """Import the contract on first use, with pyspark, which engines lack."""
    if name in __all__:
        from waltap_spark.formats import table_format

        return getattr(table_format, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
