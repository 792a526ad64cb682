"""Mapping of a table's rows to a shared target."""

from typing import Final

import msgspec

# The default name of the column with a row's source.
COLUMN: Final = "_source"


class TargetMapping(msgspec.Struct, frozen=True, kw_only=True):
    """One source's part of a target: its rows have ``source`` in ``column``."""

    schema: str
    table: str
    source: str
    column: str = COLUMN

    @property
    def name(self) -> str:
        """Return the target's name, ``schema.table``."""
        return f"{self.schema}.{self.table}"
