"""Records, the input of row-oriented sinks."""

import msgspec

# (name, value as the format renders it).
Header = tuple[str, bytes]


class Record(msgspec.Struct, gc=False):
    """One record for a topic."""

    topic: str
    # None: the record has no key.
    key: bytes | None
    # None: the record is a tombstone.
    value: bytes | None
    # Shared between records, so never change it.
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    # In ms since 1970 UTC. None: the time of writing, where the destination has one.
    timestamp: int | None = None
