"""Changes that are left out because nobody captures their table."""

from waltap.decode.message import Message, Skipped

__all__ = ["skip"]


def skip(messages: list[Message], xid: int = 0) -> None:
    """Count one change that is left out, in one message per run of them."""
    last = messages[-1] if messages else None
    if isinstance(last, Skipped) and last.xid == xid:
        last.count += 1
    else:
        messages.append(Skipped(1, xid))
