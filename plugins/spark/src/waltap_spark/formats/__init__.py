"""Table formats: storage of a table's rows and history.

A plugin adds a format by `register_table_formats`, and implements `TableFormat`.
"""

from waltap_spark.formats.table_format import (
    CommitContext,
    GroupRows,
    TableChange,
    TableFormat,
    TableFormatContext,
    What,
)

__all__ = ["CommitContext", "GroupRows", "TableChange", "TableFormat", "TableFormatContext", "What"]
