"""Tables that rest, while others have their files compacted, or write other rows of their targets.

Readers find a table at the version of the last commit that touched it. Others remove what versions need
that are old enough, and cannot know who rests at which. So a table that nothing happens to goes on to the
newest version once in a while, which has the same rows of it.
"""

import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from waltap_spark.formats import CommitContext, TableFormat
from waltap_spark.output import OutputState, TableState
from waltap_spark.session import SizedSession, each_in_one

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["IdleTables"]

REST_S: Final = 3600.0
"""How long a table rests: far below what formats keep old versions for, a few days."""

AT_ONCE: Final = 10

SHARE_S: Final = 2.0
"""How long one look at tables may keep changes waiting: the others have their turn with the next one."""


class IdleTables:
    """Looks after the tables of one output, at its start and once in a while."""

    def __init__(self, tables: TableFormat) -> None:
        self._format, self._next = tables, 0.0
        self._left: list[str] = []

    def found(
        self, sessions: SimpleQueue[SizedSession], state: OutputState
    ) -> dict[str, TableState]:
        """Return the tables that go on, as they are to be committed, found in one of ``sessions``. No step
        of them may be owed."""
        began = time.monotonic()
        if not self._left and began >= self._next:
            self._next, self._left = began + REST_S, list(state.tables)
        found = dict[str, TableState]()

        def look(spark: "SparkSession") -> None:
            step = CommitContext(spark=spark, number=state.number, mark=state.mark, attempt="")
            while self._left:
                names, self._left = self._left[:AT_ONCE], self._left[AT_ONCE:]
                tables = {name: state.tables[name] for name in names if name in state.tables}
                found.update(self._format.rested(step, tables))
                if time.monotonic() >= began + SHARE_S:
                    break

        each_in_one(sessions, [look] if self._left else [], 1)
        return found
