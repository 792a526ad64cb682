"""Exit codes of the driver process, for the driver and its parent."""

from typing import Final

# An error that a retry may fix.
FAILED: Final = 1

# An error that a retry does not fix.
REFUSED: Final = 2

# Another process uses the tables.
LOCKED: Final = 3

# Spark tasks could not read a snapshot.
UNREACHABLE: Final = 4

# The changes of suspended tables are not applied; all others are.
SUSPENDED: Final = 5
