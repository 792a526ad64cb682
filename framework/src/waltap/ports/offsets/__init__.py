"""Stage 8: store offsets durably before the slot is confirmed."""

from waltap.ports.offsets.offset import Offset, OffsetStore, PartitionOffset, decoded, encoded

__all__ = ["Offset", "OffsetStore", "PartitionOffset", "decoded", "encoded"]
