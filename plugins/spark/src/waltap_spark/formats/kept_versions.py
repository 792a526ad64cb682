"""From which version on a table of the format must keep its versions, for all who stand at one.

Who removes old versions knows at which its own tables stand. What other outputs need of a target that they
share, their notes tell: the version that their last commit names, behind which are the steps that no
commit names yet. Knows no Spark.
"""

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from waltap_spark.formats.notes import NOWHERE, CommitNote

__all__ = ["TableVersionInfo", "needed_since"]


class TableVersionInfo(NamedTuple):
    """A version of a table: its number or id, when it was made (ms since 1970), and its note."""

    number: int
    made_ms: int
    note: CommitNote | None


def needed_since(
    versions: Iterable[TableVersionInfo], named: Collection[int], own: str, silent_ms: float
) -> float:
    """Return when the oldest version was made that somebody needs; infinity where nobody does.

    ``versions``: newest first. ``named``: those that the tables of the output ``own`` stand at. Of others,
    those count that have written after ``silent_ms``.
    """
    needed, stands = math.inf, dict[tuple[str, str], int]()
    for number, made_ms, note in versions:
        if note is not None and note.waltap != own:
            table = note.waltap, note.table
            if table not in stands and made_ms > silent_ms:
                stands[table] = note.stands
                needed = made_ms
            if stands.get(table) == NOWHERE:
                needed = made_ms  # no commit names a step of it yet
        if number in named or number in stands.values():
            needed = made_ms
    return needed
