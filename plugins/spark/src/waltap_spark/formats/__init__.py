"""Table formats: how the rows of a table and its history are stored. Another one is a plugin
(`register_table_formats`) that implements `TableFormat`."""

from waltap_spark.formats.table_format import (
    CommitContext,
    GroupRows,
    TableChange,
    TableFormat,
    TableFormatContext,
    What,
)

__all__ = ["CommitContext", "GroupRows", "TableChange", "TableFormat", "TableFormatContext", "What"]
