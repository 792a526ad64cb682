"""Records: what a row-oriented sink gets."""

import msgspec

__all__ = ["Header", "Record"]

Header = tuple[str, bytes]
"""(name, value as the format renders it)."""


class Record(msgspec.Struct, gc=False):
    """One record for a topic. ``value`` None is a tombstone; ``key`` None a record without key.

    ``headers`` is shared between records: never change it. ``timestamp`` is in ms since 1970 UTC; None: it
    is that of the writing, where a destination has one.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp: int | None = None
