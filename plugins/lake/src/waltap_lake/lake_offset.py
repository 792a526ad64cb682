"""How far a pipeline has got in a lake, as its table of positions keeps it. Sans-IO."""

import msgspec

from waltap.source.position import Position

__all__ = ["LakeOffset"]


class LakeOffset(msgspec.Struct, frozen=True):
    """``position`` is durable in every table; None: nothing is, or a snapshot is under way.

    ``epoch`` counts the beginnings: positions of tables from another one say nothing. ``generation``
    counts the openings: only the instance that opened last commits. ``unfinished`` are the LSNs of
    snapshots that began and did not end: their rows are taken out when the table is read again.
    """

    epoch: int = 0
    generation: int = 0
    position: Position | None = None
    unfinished: tuple[int, ...] = ()

    def encode(self) -> str:
        """Return it as text, JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> "LakeOffset":
        """Return what `encode` wrote. Raises: msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls)
