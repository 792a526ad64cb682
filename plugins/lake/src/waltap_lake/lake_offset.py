"""Encode the progress of a pipeline in a lake.

The lake's table of positions stores it. Sans-IO.
"""

import msgspec

from waltap.source.position import Position

__all__ = ["LakeOffset", "LakeTableVersion", "WrittenTable"]


class LakeTableVersion(msgspec.Struct, frozen=True, array_like=True):
    """Identify one version of a table."""

    # The UUID that the format gives a new table.
    identity: str
    # Delta's version or Iceberg's last sequence number; both only grow.
    number: int
    # Iceberg's current snapshot.
    snapshot: int = 0


class WrittenTable(msgspec.Struct, frozen=True, array_like=True):
    """Describe a table that the pipeline has committed to."""

    # The table of the lake.
    space: str
    name: str
    # The relation whose rows came last.
    schema: str
    table: str
    oid: int
    # The table's version after the last commit.
    version: LakeTableVersion


class LakeOffset(msgspec.Struct, frozen=True):
    """Hold the progress of one pipeline in all its tables."""

    # Grows with each new history. Positions of tables from another epoch have no meaning.
    epoch: int = 0
    # Grows with each `LakeSink.open`. Only the instance that opened last may commit.
    generation: int = 0
    # The position that every table has. None before the first commit and during a snapshot.
    position: Position | None = None
    # LSNs of snapshots that began and did not end. The next snapshot deletes their rows.
    unfinished: tuple[int, ...] = ()
    # Tables with commits of this epoch. Marks of earlier releases name none.
    tables: tuple[WrittenTable, ...] = ()

    def encode(self) -> str:
        """Return the mark as JSON text."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> "LakeOffset":
        """Return the mark in JSON text.

        Raises: msgspec.DecodeError.
        """
        return msgspec.json.decode(text, type=cls)
