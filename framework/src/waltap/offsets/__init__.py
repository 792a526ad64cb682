"""Stage 7: what is durable, and what may be confirmed."""

from waltap.offsets.offset import Offset, OffsetStore, SnapshotProgress

__all__ = ["Offset", "OffsetStore", "SnapshotProgress"]
