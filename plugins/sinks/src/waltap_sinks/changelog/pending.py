"""What the change log has taken and not published."""

from collections.abc import Iterator

from waltap_sinks.changelog.manifest import TableEntry
from waltap_sinks.changelog.segment import TableBuffer

__all__ = ["BufferKey", "PendingTables"]

BufferKey = tuple[str, str, int | None, int | None]
"""Schema, table, the generation of rows of a snapshot, and their chunk while it has not ended."""


class PendingTables:
    """Buffers of the tables that one manifest, or one open transaction, touches."""

    def __init__(self) -> None:
        self.finished: list[TableEntry] = []
        self.current: dict[BufferKey, TableBuffer] = {}

    def buffers(self) -> Iterator[TableBuffer]:
        """Return the buffers that still take changes."""
        return iter(self.current.values())

    def chunks(self) -> dict[BufferKey, TableBuffer]:
        """Return the buffers of chunks of a snapshot that have not ended: they are not published yet."""
        return {key: buffer for key, buffer in self.current.items() if key[3] is not None}

    def __bool__(self) -> bool:
        return bool(self.finished or len(self.current) > len(self.chunks()))
