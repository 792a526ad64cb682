"""Table formats: storage of a table's rows and history.

A plugin adds a format by `register_table_formats`, and implements `TableFormat`.
"""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

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

# the contract needs pyspark, which engines lack
__getattr__ = on_first_use(__name__)
