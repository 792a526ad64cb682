"""Exit codes of the driver process, for the driver and its parent."""

from typing import Final

__all__ = ["FAILED", "LOCKED", "REFUSED", "STANDING", "UNREAD"]

FAILED: Final = 1
"""An error that a retry may fix."""

REFUSED: Final = 2
"""An error that a retry does not fix."""

LOCKED: Final = 3
"""Another process uses the tables."""

UNREAD: Final = 4
"""Spark tasks could not read a snapshot."""

STANDING: Final = 5
"""All changes are applied except those of suspended tables."""
