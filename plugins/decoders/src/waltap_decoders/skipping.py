"""Counting of changes whose table is not captured."""

from waltap.decode.message import Message, Skipped

__all__ = ["skip"]


def skip(messages: list[Message], xid: int = 0) -> None:
    """Count one skipped change."""
    last = messages[-1] if messages else None
    # One message per run of skipped changes, not one per change.
    if isinstance(last, Skipped) and last.xid == xid:
        last.count += 1
    else:
        messages.append(Skipped(1, xid))
