"""Decide whether and when an HTTP request is retried."""

from email.utils import parsedate_to_datetime
from typing import Final

__all__ = ["TRIES_AGAIN", "retry_after"]

# Status codes after which the same request may be sent again.
TRIES_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


def retry_after(text: str, now: float) -> float:
    """Return the seconds that a ``Retry-After`` header requests.

    An unreadable header gives 0. ``now`` is in seconds since 1970 UTC: a header may give a date.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0
