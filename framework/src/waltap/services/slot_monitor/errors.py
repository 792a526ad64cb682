"""Errors with which the slot monitor ends a run."""

from waltap.errors import SourceError

__all__ = ["SlotGivenUp"]


class SlotGivenUp(SourceError):
    """The slot retained too much WAL and was dropped (waltap.wal.action = drop)."""

    code = "WT-2030"
    remedy = (
        "The database is safe; the pipeline has a gap, of which {certificate} says all. When the sink "
        "takes changes again: `waltap repair FILE` makes a new slot and reads the tables anew."
    )
