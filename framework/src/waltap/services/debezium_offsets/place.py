"""Find Debezium's offset storage: a file, or one that a plugin reads."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from waltap.base.decode_errors import UNREADABLE
from waltap.base.files.durable_file import replace_durably
from waltap.ports.offsets.connect_offsets import ConnectOffsets
from waltap.services.debezium_offsets.errors import (
    DebeziumOffsetMissing,
    DebeziumOffsetsUnreadable,
    DebeziumOffsetsUnwritable,
)

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.plugins.host import Host


# Read and write a ``HashMap<byte[], byte[]>`` in Java serialization. Sans-IO.
#
# A FileOffsetBackingStore writes such a map. The reader accepts no other class, so a malicious
# file causes only an error. Source: Java Object Serialization Specification, section 6 (grammar);
# ``HashMap.writeObject``.

MAGIC: Final = b"\xac\xed\x00\x05"
NULL, REFERENCE, CLASS, OBJECT, ARRAY = 0x70, 0x71, 0x72, 0x73, 0x75
BLOCK, END_BLOCK, RESET = 0x77, 0x78, 0x79
BASE_HANDLE: Final = 0x7E0000

MAP_CLASS: Final = b"\x00\x11java.util.HashMap\x05\x07\xda\xc1\xc3\x16\x60\xd1"
MAP_FIELDS: Final = b"\x03\x00\x02F\x00\x0aloadFactorI\x00\x09threshold\x78\x70"
BYTES_CLASS: Final = b"\x00\x02[B\xac\xf3\x17\xf8\x06\x08\x54\xe0\x02\x00\x00\x78\x70"
LOAD_FACTOR: Final = b"\x3f\x40\x00\x00"
BYTES_HANDLE: Final = BASE_HANDLE + 2
"""Handles count from the map's class; the map is the second, the arrays' class the third."""

INT, BLOCK_OF_INTS = Struct(">i"), Struct(">ii")


def java_map(entries: dict[bytes, bytes]) -> bytes:
    """Return ``entries`` as Java serializes them."""
    # Java's defaults: 16 buckets, doubled beyond a load of three quarters.
    buckets = 16
    while buckets * 3 // 4 < len(entries):
        buckets *= 2
    out = bytearray(MAGIC)
    out += bytes((OBJECT, CLASS)) + MAP_CLASS + MAP_FIELDS
    out += LOAD_FACTOR + INT.pack(buckets * 3 // 4)
    out += bytes((BLOCK, BLOCK_OF_INTS.size)) + BLOCK_OF_INTS.pack(buckets, len(entries))
    known = False
    for pair in entries.items():
        for value in pair:
            out.append(ARRAY)
            # Java writes a class once and refers to it by handle afterwards.
            if known:
                out.append(REFERENCE)
                out += INT.pack(BYTES_HANDLE)
            else:
                out.append(CLASS)
                out += BYTES_CLASS
                known = True
            out += INT.pack(len(value)) + value
    out.append(END_BLOCK)
    return bytes(out)


def parse_java_map(data: bytes) -> dict[bytes, bytes]:
    """Return the entries of a serialized map, except null ones.

    Raises: ValueError, which names the unexpected content.
    """
    try:
        return _JavaMapReader(data).entries()
    except (IndexError, OverflowError) as error:
        raise ValueError("it ends early") from error


class _JavaMapReader:
    """Reads one serialized map."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        # Objects that the stream may refer to, in order: classes (None) and arrays.
        self._handles: list[bytes | None] = []

    def entries(self) -> dict[bytes, bytes]:
        self._expect(MAGIC, "it is no Java serialisation")
        self._expect(bytes((OBJECT, CLASS)), "it holds no object")
        self._expect(MAP_CLASS, "it holds another class than java.util.HashMap")
        self._expect(MAP_FIELDS, "its java.util.HashMap is of another Java")
        self._handles += [None, None]
        self._take(len(LOAD_FACTOR) + INT.size)
        self._expect(bytes((BLOCK, BLOCK_OF_INTS.size)), "its map has no size")
        _, count = BLOCK_OF_INTS.unpack(self._take(BLOCK_OF_INTS.size))
        # A damaged count must not cause a long loop.
        if not 0 <= count <= len(self._data):
            raise ValueError(f"its map has {count} entries")
        found: dict[bytes, bytes] = {}
        for _ in range(count):
            key, value = self._bytes(), self._bytes()
            if key is not None and value is not None:
                found[key] = value
        self._expect(bytes((END_BLOCK,)), "its map does not end")
        return found

    def _bytes(self) -> bytes | None:
        kind = self._take(1)[0]
        if kind == NULL:
            return None
        if kind == REFERENCE:
            return self._referred()
        if kind != ARRAY:
            raise ValueError(f"its map holds an object of kind {kind:#04x} where bytes should be")
        if self._take(1)[0] == CLASS:
            self._expect(BYTES_CLASS, "its map holds arrays of something else than bytes")
            self._handles.append(None)
        elif self._referred() is not None:
            raise ValueError("it refers to a value where a class should be")
        (size,) = INT.unpack(self._take(INT.size))
        if size < 0:
            raise ValueError(f"it holds an array of {size} bytes")
        value = self._take(size)
        self._handles.append(value)
        return value

    def _referred(self) -> bytes | None:
        handle = int(INT.unpack(self._take(INT.size))[0])
        number = handle - BASE_HANDLE
        if not 0 <= number < len(self._handles):
            raise ValueError(f"it refers to {handle:#x}, which is not there")
        return self._handles[number]

    def _expect(self, wanted: bytes, otherwise: str) -> None:
        if self._data[self._at : self._at + len(wanted)] != wanted:
            raise ValueError(otherwise)
        self._at += len(wanted)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise IndexError(end)
        taken, self._at = self._data[self._at : end], end
        return taken


# Parse the keys of Kafka Connect offsets. Sans-IO.
#
# A key of Debezium is ``["CONNECTOR",{"server":"TOPIC_PREFIX"}]``.


class RecordKey(msgspec.Struct, frozen=True):
    """The connector's name and its topic.prefix."""

    connector: str
    server: str

    @classmethod
    def parse(cls, data: bytes) -> "RecordKey | None":
        """Return the parsed key, None for one of another kind of connector."""
        try:
            found = msgspec.json.decode(data)
        except UNREADABLE:
            return None
        if isinstance(found, dict) and "payload" in found:
            found = found["payload"]  # a converter with schemas wraps the key
        match found:
            case [str(connector), {"server": str(server)}]:
                return cls(connector, server)
        return None

    def encoded(self) -> bytes:
        """Return the key as Kafka Connect writes it."""
        return msgspec.json.encode([self.connector, {"server": self.server}])

    def __str__(self) -> str:
        return f"connector {self.connector} with topic.prefix {self.server}"


def chosen(keys: Iterable[bytes], *, server: str, connector: str | None, place: str) -> bytes:
    """Return the key of the profile's offset.

    ``connector`` is its name, None if unknown. Raises: DebeziumOffsetMissing.
    """
    known = {key: found for key in keys if (found := RecordKey.parse(key)) is not None}
    fit = [
        key
        for key, found in known.items()
        if found.server == server and connector in {None, found.connector}
    ]
    if len(fit) == 1:
        return fit[0]
    whose = f"topic.prefix {server}" + (f" and the connector {connector}" if connector else "")
    what = f"{place} has {len(fit) or 'no'} offset{'s' if fit else ''} of {whose}"
    found_text = "; ".join(sorted(map(str, known.values()))[:20]) or "no offset of a connector"
    raise DebeziumOffsetMissing(what, found=found_text)


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
