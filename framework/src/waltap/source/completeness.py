"""What a stream is sure to bring, as far as its source knows: for sinks to which a change that is missing
matters. Sans-IO."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PublicationCompleteness"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationCompleteness:
    """Of which tables a stream brings every change.

    ``tables`` gives, by (schema, table), a text for each that was there when the stream was set up: it
    is another one where what the server publishes of the table was changed meanwhile, also to and fro; ""
    where it need not publish all. ``others`` is that of tables that are made later. It holds for
    transactions that commit at LSN ``since`` or behind it. ``goes_on``: nothing is missing between what
    was delivered before and what the stream brings.

    Without arguments it says that nobody knows.
    """

    tables: Mapping[tuple[str, str], str] = field(default_factory=dict)
    others: str = ""
    since: int = 0
    goes_on: bool = False

    def of(self, schema: str, table: str) -> str:
        """Return the text of one table."""
        return self.tables.get((schema, table), self.others)
