"""The framework's own offset stores."""

from pathlib import Path

from waltap.ports.offsets.file_store import FileOffsetProperties, FileOffsetStore
from waltap.ports.offsets.memory_store import MemoryOffsetStore
from waltap.ports.offsets.state_folder import OFFSET
from waltap.ports.specs import OffsetStoreSpec

__all__ = ["OFFSET_STORES"]


def _file(properties: FileOffsetProperties, home: str) -> FileOffsetStore:
    return FileOffsetStore(properties.path or Path(home) / OFFSET)


OFFSET_STORES = (
    OffsetStoreSpec(
        name="file",
        summary="One JSON file, replaced atomically (the default).",
        properties=FileOffsetProperties,
        factory=_file,
    ),
    OffsetStoreSpec(
        name="memory",
        summary="Nowhere: every start is a first one.",
        factory=lambda _properties, _home: MemoryOffsetStore(),
    ),
)
