"""Find Debezium's offset storage: a file, or one that a plugin reads."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from waltap.base.files.durable_file import replace_durably
from waltap.ports.offsets.connect_offsets import ConnectOffsets
from waltap.services.debezium_offsets.errors import (
    DebeziumOffsetsUnreadable,
    DebeziumOffsetsUnwritable,
)
from waltap.services.debezium_offsets.java_map import java_map, parse_java_map

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.plugins.host import Host

__all__ = ["FileOffsets", "place_of"]


class FileOffsets(ConnectOffsets):
    """The file of ``offset.storage.file.filename``."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        # With ``new`` the file may be missing or empty.
        self._path, self._new = path, new

    def read(self) -> Mapping[bytes, bytes]:
        try:
            data = self._path.read_bytes()
            return {} if self._new and not data else parse_java_map(data)
        except FileNotFoundError as error:
            if self._new:
                return {}
            what = f"{self._path} is not there"
            raise DebeziumOffsetsUnreadable(what, place=self._path) from error
        except OSError as error:
            what = f"{self._path} cannot be read: {error.strerror or error}"
            raise DebeziumOffsetsUnreadable(what, place=self._path) from error
        except ValueError as error:
            what = f"{self._path} holds no offsets: {error}"
            raise DebeziumOffsetsUnreadable(what, place=self._path) from error

    def write(self, key: bytes, value: bytes) -> None:
        there = self.read()
        try:
            replace_durably(self._path, java_map({**there, key: value}))
        except OSError as error:
            what = f"{self._path} cannot be written: {error.strerror or error}"
            raise DebeziumOffsetsUnwritable(what, place=self._path) from error


def place_of(text: str, profile: "Profile", host: "Host", *, new: bool = False) -> ConnectOffsets:
    """Return the storage that ``text`` names.

    ``text`` is a file's path, or a place that a plugin's ``choose_connect_offsets`` knows. With ``new``
    a file may be created.

    Raises: DebeziumOffsetsUnreadable, HookRaised, and the errors of the hook's plugin.
    """
    path = Path(text)
    # A plain name may also be a plugin's: only a path with a folder or suffix is surely a file.
    if "://" not in text and (path.exists() or "/" in text or path.suffix):
        return FileOffsets(path, new=new)
    found: ConnectOffsets | None = host.choose(
        "choose_connect_offsets", place=text, sink=profile.sink.properties
    )
    if found is not None:
        return found
    if "://" in text:
        raise DebeziumOffsetsUnreadable(
            f"no plugin that is installed reads {text.partition('://')[0]}://", place=text
        )
    return FileOffsets(path, new=new)
