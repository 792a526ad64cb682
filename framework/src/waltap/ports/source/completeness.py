"""Describe which tables a stream covers completely. Sans-IO.

Sinks need it that must know whether a change can be missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PublicationCompleteness"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationCompleteness:
    """The tables of which a stream delivers every change.

    Without arguments nothing is known.
    """

    # By (schema, table): a text for each table at the setup of the stream, "" for one that may
    # be published in part. The text differs after any change of the table's publication, even
    # if another change reverted that.
    tables: Mapping[tuple[str, str], str] = field(default_factory=dict)
    # The text of tables that are created later.
    others: str = ""
    # The texts hold for transactions that commit at this LSN or later.
    since: int = 0
    # Whether nothing is missing between the delivered changes and the stream.
    goes_on: bool = False

    def of(self, schema: str, table: str) -> str:
        """Return the completeness text of one table."""
        return self.tables.get((schema, table), self.others)
