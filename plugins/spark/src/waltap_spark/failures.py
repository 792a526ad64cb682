"""What is wrong with one table, which then stands still alone, and what is wrong for all."""

from collections.abc import Sequence
from typing import Final

from waltap_sinks.changelog.errors import ColumnNameTaken
from waltap_spark.errors import FormatError, NamesClash, SegmentDamaged, SourcesDiffer, TypeChanged

__all__ = ["OF_ONE", "require_one"]

OF_ONE: Final = (
    TypeChanged,
    NamesClash,
    ColumnNameTaken,
    SourcesDiffer,
    SegmentDamaged,
    FormatError,
)
"""What is wrong with one table, and no other."""


def require_one(errors: Sequence[Exception | None]) -> None:
    """Raise what all tables failed with, where it is no matter of one: what is wrong for all alike."""
    from pyspark.errors import PySparkException

    for error in errors if all(errors) else ():
        if error is not None and not isinstance(error, (*OF_ONE, PySparkException)):
            raise error
