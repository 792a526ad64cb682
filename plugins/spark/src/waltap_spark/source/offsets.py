"""What a checkpoint says of one change log: its mark, and which log it is."""

from typing import Any, Final

from waltap_sinks.changelog import NOTHING, Mark

__all__ = ["NOWHERE", "mark_of", "offset_of"]

VERSION: Final = 1


def offset_of(identity: str, mark: Mark) -> dict[str, Any]:
    """Return the offset of ``mark`` in the log ``identity``."""
    return {
        "version": VERSION,
        "log": identity,
        "epoch": mark.epoch,
        "end_lsn": mark.end_lsn,
        "ordinal": mark.ordinal,
    }


def mark_of(offset: dict[str, Any]) -> Mark:
    """Return the mark of an offset."""
    return Mark(offset["epoch"], offset["end_lsn"], offset["ordinal"])


NOWHERE: Final = offset_of("", NOTHING)
"""The offset before everything, in a log that may not be there yet."""
