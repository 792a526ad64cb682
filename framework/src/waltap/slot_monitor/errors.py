"""What the guardian ends a run with."""

from waltap.errors import SourceError

__all__ = ["SlotGivenUp"]


class SlotGivenUp(SourceError):
    """The guardian dropped the slot, as waltap.wal.action = drop has it: it kept too much WAL."""

    code = "WT-2030"
    remedy = (
        "The database is safe; the pipeline has a gap, of which {certificate} says all. When the sink "
        "takes changes again: `waltap repair FILE` makes a new slot and reads the tables anew."
    )
