"""How the process of the driver ends, for who started it: stated once for both sides."""

from typing import Final

__all__ = ["FAILED", "LOCKED", "REFUSED", "STANDING", "UNREAD"]

FAILED: Final = 1
"""By an error that another try may fix."""

REFUSED: Final = 2
"""By one that another try does not fix."""

LOCKED: Final = 3
"""The tables are in use."""

UNREAD: Final = 4
"""Tasks could not read a snapshot."""

STANDING: Final = 5
"""All is applied but for tables that stand still."""
