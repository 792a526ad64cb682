"""Keep idle tables readable.

Readers find a table at the version of the last commit that changed it. Another process may
compact the table's files, or write other rows of its target, and remove files of old versions:
it does not know which version the output names. So an idle table is moved to the newest version
once in a while; the newest version has the same rows of it.
"""

import time
from queue import SimpleQueue
from typing import Final

from pyspark.sql import SparkSession

from waltap_spark.formats.table_format import CommitContext, TableFormat
from waltap_spark.session.session import SizedSession, each_in_one
from waltap_spark.state.output import OutputState, TableState

# Seconds between two looks, far below the few days that formats keep old versions.
REST_S: Final = 3600.0

# Tables of one look, between two checks of the time.
AT_ONCE: Final = 10

# Seconds that a look may delay changes; the next look takes the other tables.
SHARE_S: Final = 2.0


class IdleTables:
    """Moves the idle tables of one output to newer versions."""

    def __init__(self, tables: TableFormat) -> None:
        self._format, self._next = tables, 0.0
        self._remaining: list[str] = []

    def found(
        self, sessions: SimpleQueue[SizedSession], state: OutputState
    ) -> dict[str, TableState]:
        """Return the tables whose version moved, for the next commit.

        One of ``sessions`` reads the versions. No table may have an unfinished step.
        """
        began = time.monotonic()
        if not self._remaining and began >= self._next:
            self._next, self._remaining = began + REST_S, list(state.tables)
        found = dict[str, TableState]()

        def find(spark: SparkSession) -> None:
            commit = CommitContext(
                spark=spark, number=state.number, log_position=state.log_position, attempt=""
            )
            while self._remaining:
                names, self._remaining = self._remaining[:AT_ONCE], self._remaining[AT_ONCE:]
                tables = {name: state.tables[name] for name in names if name in state.tables}
                found.update(self._format.move_idle(commit, tables))
                if time.monotonic() >= began + SHARE_S:
                    break

        each_in_one(sessions, [find] if self._remaining else [], 1)
        return found
