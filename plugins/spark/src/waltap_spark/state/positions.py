"""Parse source positions: an LSN as PostgreSQL prints it, or a mark."""

import re
from typing import Final

from waltap.changes.transactions.position import parse_lsn
from waltap_sinks.changelog.manifest import LogPosition

# A mark with all its digits, so that a date such as 2026-03-01 is not a mark.
_MARK: Final = re.compile(r"([0-9a-f]{4,})-([0-9a-f]{16})-([0-9a-f]{6,})", re.IGNORECASE)


def parse_position(text: str) -> LogPosition | int:
    """Return the mark or the LSN in ``text``.

    Raises: ValueError when it is neither.
    """
    mark = _MARK.fullmatch(text.strip())
    if mark is not None:
        return LogPosition(*(int(part, 16) for part in mark.groups()))
    return parse_lsn(text)
