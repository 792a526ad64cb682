"""Keep offsets in memory, for runs with a temporary slot."""

from waltap.ports.offsets.offset import Offset, OffsetStore

__all__ = ["MemoryOffsetStore"]


class MemoryOffsetStore(OffsetStore):
    """An offset store that survives reconnects, but no restart."""

    def __init__(self) -> None:
        self._offset: Offset | None = None

    def load(self) -> Offset | None:
        return self._offset

    def store(self, offset: Offset) -> None:
        self._offset = offset

    def clear(self) -> None:
        self._offset = None
