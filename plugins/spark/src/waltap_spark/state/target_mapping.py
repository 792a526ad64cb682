"""Where the rows of a table lie, when that is not by themselves. Knows nothing of tables."""

from typing import Final

import msgspec

__all__ = ["COLUMN", "TargetMapping"]

COLUMN: Final = "_source"
"""What the column is called that says of which source a row is, if nothing else was chosen."""


class TargetMapping(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a target that is one table's: its rows have ``source`` in ``column``."""

    schema: str
    table: str
    source: str
    column: str = COLUMN

    @property
    def name(self) -> str:
        """Return the target's name, ``schema.table``."""
        return f"{self.schema}.{self.table}"
