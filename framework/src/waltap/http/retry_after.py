"""Which answers of a server say that another try may help, and when."""

from email.utils import parsedate_to_datetime
from typing import Final

__all__ = ["TRIES_AGAIN", "retry_after"]

TRIES_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Status codes after which the same request may be sent again."""


def retry_after(text: str, now: float) -> float:
    """Return the seconds that a ``Retry-After`` header asks to wait; 0 where it says nothing that can be
    read. ``now``: seconds since 1970 UTC, for headers that give a date."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0
