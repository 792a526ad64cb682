"""Offsets of connectors as Kafka Connect keeps them: the contract of who reaches them."""

from collections.abc import Mapping
from typing import Protocol

__all__ = ["ConnectOffsets"]


class ConnectOffsets(Protocol):
    """Offsets of connectors, by their keys, as Kafka Connect keeps them somewhere."""

    def read(self) -> Mapping[bytes, bytes]:
        """Return every offset that is not taken back. Raises: WaltapError."""

    def write(self, key: bytes, value: bytes) -> None:
        """Keep the offset of one connector, durably; the others stay. Raises: WaltapError."""
