"""What the log and notifications say of the tables that a signal asks for. Sans-IO but for the log."""

import logging

from waltap.signals.errors import TableNotRead
from waltap.signals.signal import SnapshotRequest

__all__ = ["cut", "key_text", "listed", "refused", "some"]

log = logging.getLogger(__name__)

LOGGED_NAMES = 10
LOGGED_CHARACTERS = 2000
"""A line of the log has no more of what a signal says."""


def refused(requests: list[SnapshotRequest], why: str) -> None:
    """Say once, for all tables alike, that they are not read."""
    if not requests:
        return
    log.warning(
        "table %s is not read as signal %s asks: %s",
        some(requests),
        cut(requests[0].signal),
        cut(why),
        extra={"relation": requests[0].name, "error_code": TableNotRead.code},
    )


def some(requests: list[SnapshotRequest]) -> str:
    """Return the names of the first tables, and how many more there are."""
    names = ", ".join(request.name for request in requests[:LOGGED_NAMES])
    more = len(requests) - LOGGED_NAMES
    return cut(names) + (f" and {more} more" if more > 0 else "")


def listed(requests: list[SnapshotRequest]) -> str:
    """Return the names of all tables as notifications have them."""
    return ",".join(request.name for request in requests)


def key_text(key: list[str | None] | None) -> str:
    """Return the parts of a key as notifications have them."""
    return ",".join("<null>" if part is None else part for part in key or ())


def cut(text: str) -> str:
    """Return what the log has of ``text``."""
    return text if len(text) <= LOGGED_CHARACTERS else f"{text[:LOGGED_CHARACTERS]}…"
