"""How far a pipeline has got in a lake, as its table of positions keeps it. Sans-IO."""

import msgspec

from waltap.source.position import Position

__all__ = ["LakeOffset", "LakeTableVersion", "WrittenTable"]


class LakeTableVersion(msgspec.Struct, frozen=True, array_like=True):
    """A state of a table. ``identity`` is the UUID that the format gives a table when it is made;
    ``number`` only grows: Delta's version, Iceberg's last sequence number; ``snapshot`` is Iceberg's
    current one."""

    identity: str
    number: int
    snapshot: int = 0


class WrittenTable(msgspec.Struct, frozen=True, array_like=True):
    """A table that the pipeline has committed to, the relation whose rows came last, and the version."""

    space: str
    name: str
    schema: str
    table: str
    oid: int
    version: LakeTableVersion


class LakeOffset(msgspec.Struct, frozen=True):
    """``position`` is durable in every table; None: nothing is, or a snapshot is under way.

    ``epoch`` counts the beginnings: positions of tables from another one say nothing. ``generation``
    counts the openings: only the instance that opened last commits. ``unfinished`` are the LSNs of
    snapshots that began and did not end: their rows are taken out when the table is read again.
    ``tables`` are those with commits of this epoch; marks of earlier releases name none.
    """

    epoch: int = 0
    generation: int = 0
    position: Position | None = None
    unfinished: tuple[int, ...] = ()
    tables: tuple[WrittenTable, ...] = ()

    def encode(self) -> str:
        """Return it as text, JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> "LakeOffset":
        """Return what `encode` wrote. Raises: msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls)
