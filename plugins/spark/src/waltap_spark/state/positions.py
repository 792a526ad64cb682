"""Parse source positions: an LSN as PostgreSQL prints it, or a position."""

import re
from typing import Final

from waltap.changes.transactions.position import parse_lsn
from waltap_sinks.changelog.manifest import LogPosition

# A position with all its digits, so that a date such as 2026-03-01 is not a position.
_LOG_POSITION: Final = re.compile(r"([0-9a-f]{4,})-([0-9a-f]{16})-([0-9a-f]{6,})", re.IGNORECASE)


def parse_position(text: str) -> LogPosition | int:
    """Return the position or the LSN in ``text``.

    Raises: ValueError when it is neither.
    """
    log_position = _LOG_POSITION.fullmatch(text.strip())
    if log_position is not None:
        return LogPosition(*(int(part, 16) for part in log_position.groups()))
    return parse_lsn(text)
