"""Whether a stream may send values in PostgreSQL's send format.

What a value is in text, its send format must give, too. A type for which nobody knows how (a base type
of the user's own, one without a send function) is only to be had as text, and output plugins are asked
for one format for all columns: one such column among those captured makes a whole stream text.
"""

import logging
from collections.abc import Callable, Iterable

from waltap.decode.relation import Relation

log = logging.getLogger(__name__)

__all__ = ["SendFormat"]


class SendFormat:
    """Kept over the reconnects of one run. ``refused`` says why text is needed, "" while it is not."""

    __slots__ = ("_unreadable", "refused")

    def __init__(
        self, unreadable: Callable[[Relation], Iterable[str]] = lambda _relation: ()
    ) -> None:
        """``unreadable`` names the columns of a described relation that are delivered, and that
        nobody can read in send format."""
        self._unreadable = unreadable
        self.refused = ""

    def look(self, relation: Relation) -> None:
        """Take note of a described relation that is captured."""
        if self.refused:
            return
        columns = list(self._unreadable(relation))
        if columns:
            self.refuse(f"{', '.join(columns)} of {relation.name} cannot be read in send format")

    def refuse(self, reason: str) -> None:
        """Ask for text from the next stream of this run on."""
        self.refused = reason
        log.warning("%s: all values are asked for as text in this run", reason)
