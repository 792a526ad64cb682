"""Stage 7: what is durable, and what may be confirmed."""

from waltap.offsets.offset import (
    Offset,
    OffsetStore,
    PartitionOffset,
    SnapshotProgress,
    decoded,
    encoded,
)

__all__ = ["Offset", "OffsetStore", "PartitionOffset", "SnapshotProgress", "decoded", "encoded"]
