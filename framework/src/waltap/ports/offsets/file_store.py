"""Keep the offset in one JSON file."""

from pathlib import Path

from waltap.base.files.durable_file import replace_durably
from waltap.base.property import Properties, declare
from waltap.errors import OffsetError
from waltap.ports.offsets.offset import Offset, OffsetStore, decoded, encoded

__all__ = ["FileOffsetProperties", "FileOffsetStore", "OffsetUnreadable", "OffsetUnwritable"]


class OffsetUnreadable(OffsetError):
    """The offset file contains no offset of this version."""

    code = "WT-6001"
    remedy = (
        "{path} must be an offset that waltap wrote. Restore it from a backup, or start over with a "
        "new snapshot: `waltap offsets clear FILE`."
    )


class OffsetUnwritable(OffsetError):
    """The offset file cannot be written.

    Delivery stops at the last stored offset: nothing later is confirmed.
    """

    code = "WT-6002"
    remedy = "Make {path} writable (space, permissions); waltap.state.dir chooses the folder."


class FileOffsetProperties(Properties):
    """Where the offset file is."""

    path: Path | None = declare(
        "waltap.offset.file",
        default=None,
        summary="File that keeps the offset; default: offset.json in the pipeline's state folder.",
    )


class FileOffsetStore(OffsetStore):
    """An offset store in one JSON file, replaced atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Offset | None:
        try:
            data = self.path.read_bytes()
        # The first start of a pipeline has no offset file yet.
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise OffsetUnreadable(f"offset cannot be read: {error}", path=self.path) from error
        try:
            return decoded(data)
        except ValueError as error:
            raise OffsetUnreadable(f"offset cannot be read: {error}", path=self.path) from error

    def store(self, offset: Offset) -> None:
        try:
            replace_durably(self.path, encoded(offset))
        except OSError as error:
            raise OffsetUnwritable(f"offset cannot be stored: {error}", path=self.path) from error

    def clear(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise OffsetUnwritable(f"offset cannot be removed: {error}", path=self.path) from error
