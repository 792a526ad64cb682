"""Positions: how far a pipeline has got, as offsets hold it. Sans-IO."""

import msgspec

__all__ = ["START", "Position", "lsn_text", "parse_lsn"]


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """A point in the stream of committed changes; totally ordered.

    ``end_lsn`` is the end of the last transaction that was delivered whole: the only LSN that may be
    confirmed to the server. ``commit_lsn`` and ``index`` tell how much of the next transaction was
    delivered too: the first ``index`` changes, in wire order and before any filter, of the
    transaction that commits at ``commit_lsn``; both are 0 when that transaction has not begun.
    One LSN alone never identifies an event: rows of one COPY share theirs.
    """

    end_lsn: int
    commit_lsn: int = 0
    index: int = 0

    def __str__(self) -> str:
        text = lsn_text(self.end_lsn)
        return f"{text}+{lsn_text(self.commit_lsn)}#{self.index}" if self.index else text


START = Position(0)


def lsn_text(lsn: int) -> str:
    """Return ``lsn`` as PostgreSQL prints it: ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Return the LSN that ``text`` prints. Raises: ValueError when it is none."""
    high, _, low = text.strip().partition("/")
    if len(high) > 8 or len(low) > 8 or not (high + low).isascii() or not (high + low).isalnum():
        message = f"not an LSN: {text!r}"
        raise ValueError(message)
    return (int(high, 16) << 32) | int(low, 16)
