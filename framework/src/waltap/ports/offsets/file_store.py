"""Keep the offset in one JSON file, or in memory."""

from pathlib import Path

from waltap.base.files.durable_file import StateDocument
from waltap.base.property import Maybe, Properties, declare
from waltap.errors import OffsetError
from waltap.ports.offsets.offset import Offset, OffsetStore, OffsetUnwritable, decoded
from waltap.ports.offsets.state_folder import OFFSET
from waltap.ports.specs import OffsetStoreSpec

OffsetUnreadable = OffsetError.define("OffsetUnreadable", "WT-6001")


class FileOffsetProperties(Properties):
    """Where the offset file is."""

    path: Maybe[Path] = declare(
        "waltap.offset.file",
        summary="File that keeps the offset; default: offset.json in the pipeline's state folder.",
    )


class FileOffsetStore(StateDocument[Offset], OffsetStore):
    """An offset store in one JSON file, replaced atomically."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            Offset,
            OffsetUnreadable,
            unwritable=OffsetUnwritable,
            what="the offset",
            decode=decoded,
        )

    def store(self, offset: Offset) -> None:
        self.save(offset)


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
