"""Tables that rest, in targets that other outputs write, too.

Readers find a table at the version of the last commit that touched it. Others remove what versions need
that are old enough, and cannot know who rests at which. So a table that nothing happens to goes on to the
newest version once in a while, which has the same rows of it.
"""

import time
from typing import TYPE_CHECKING, Final

from waltap_spark.formats import Step, TableFormat
from waltap_spark.output import OutputState, TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Resting"]

REST_S: Final = 3600.0
"""How long a table rests: far below what formats keep old versions for, a few days."""


class Resting:
    """Looks after the tables of one output, at its start and once in a while."""

    def __init__(self, tables: TableFormat) -> None:
        self._format, self._next = tables, 0.0

    def found(self, spark: "SparkSession", state: OutputState) -> dict[str, TableState]:
        """Return the tables that go on, as they are to be committed. No step of them may be owed."""
        now = time.monotonic()
        if now < self._next:
            return {}
        self._next = now + REST_S
        step = Step(spark=spark, number=state.number, mark=state.mark, attempt="")
        return dict(self._format.rested(step, state.tables))
