"""Snapshots: modes, plans, chunks, watermarks."""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap.ports.snapshot.chunk_source import SnapshotChunk
    from waltap.ports.snapshot.snapshotter import SnapshotFacts, SnapshotStart, Snapshotter

__all__ = ["SnapshotChunk", "SnapshotFacts", "SnapshotStart", "Snapshotter"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
