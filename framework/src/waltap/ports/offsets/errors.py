"""Errors of stored offsets, for every offset store."""

from waltap.errors import OffsetError

__all__ = ["NothingStored"]


class NothingStored(OffsetError):
    """There is no offset that could be moved."""

    code = "WT-6003"
    remedy = "Run the pipeline once: an offset also names the server and slot it belongs to."
