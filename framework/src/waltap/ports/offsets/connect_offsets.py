"""Read and write connector offsets of Kafka Connect."""

from collections.abc import Mapping
from typing import Protocol


class ConnectOffsets(Protocol):
    """Connector offsets in Kafka Connect's storage, by key."""

    def read(self) -> Mapping[bytes, bytes]:
        """Return every offset without a tombstone. Raises: WaltapError."""

    def write(self, key: bytes, value: bytes) -> None:
        """Store one connector's offset durably. Raises: WaltapError."""
