"""Compare a destination with its source, row by row.

A destination implements `waltap.ports.sink.verification`.
"""

from waltap_sinks.comparison.differences import TableDifferences, comparison_table
from waltap_sinks.comparison.table_readers import HASH_DIGITS, row_text

__all__ = ["HASH_DIGITS", "TableDifferences", "comparison_table", "row_text"]
