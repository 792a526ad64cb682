"""The file of a recording: gzip of entries, each a size, a checksum and MessagePack. The first is the
`RecordingHeader`.

The checksum is each entry's own: gzip's stands at the end, which a file that was cut off does not have.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Final, Self

import msgspec

from waltap.decode.decoder import Frame, ServerInfo
from waltap.decode_errors import UNREADABLE
from waltap.offsets.private_file import private
from waltap.recording.errors import RecordingDamaged, RecordingUnfit

__all__ = [
    "Entry",
    "RecordedAnswer",
    "RecordedFrames",
    "RecordingHeader",
    "RecordingMark",
    "RecordingWriter",
    "entries",
]

_HEAD: Final = Struct("<II")
"""Length of the entry, and CRC-32 of it."""
LARGEST: Final = 1 << 31
LAYOUT: Final = 1
LEVEL: Final = 1
"""Recording must not slow the stream down."""


class RecordedServer(msgspec.Struct, frozen=True, kw_only=True):
    """`ServerInfo`, as it is kept."""

    version_num: int
    version: str
    flavour: str
    system_id: str
    timeline: int
    two_phase_slot: bool
    encoding: str

    @classmethod
    def of(cls, info: ServerInfo) -> "RecordedServer":
        """Return what is kept of ``info``."""
        return cls(**{name: getattr(info, name) for name in cls.__struct_fields__})

    def info(self) -> ServerInfo:
        """Return it as decoders know it."""
        return ServerInfo(**msgspec.structs.asdict(self))


class RecordingHeader(msgspec.Struct, frozen=True, kw_only=True, tag="header"):
    """What was recorded: by which waltap, which decoder with which options, of which server.

    ``asks``: which of the questions that a decoder may be without it had somebody to ask. ``layout``: of
    the entries, another number with each change that older waltaps could not read.
    """

    identifier: str
    version: str
    decoder: str
    options: dict[str, object]
    publications: tuple[str, ...]
    server: RecordedServer
    asks: tuple[str, ...]
    layout: int = LAYOUT


class RecordedFrames(msgspec.Struct, frozen=True, tag="frames"):
    """What the decoder was fed at once."""

    frames: list[Frame]


class RecordedAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """What the decoder asked, and was told, both as MessagePack. ``unsettled`` is
    `DecoderContext.unsettled` after it, None where it has not changed."""

    question: str
    key: bytes
    value: bytes
    unsettled: dict[int, int] | None = None


class RecordingMark(msgspec.Struct, frozen=True, tag="mark"):
    """Everything up to here was decoded: the end LSN of the last transaction that has ended."""

    lsn: int


Entry = RecordingHeader | RecordedFrames | RecordedAnswer | RecordingMark

_decoder = msgspec.msgpack.Decoder(
    RecordingHeader | RecordedFrames | RecordedAnswer | RecordingMark
)


class RecordingWriter:
    """Writes one recording; a file that is there is replaced. Raises: OSError."""

    def __init__(self, path: Path) -> None:
        self._raw = open(path, "wb", opener=private)  # noqa: SIM115 - `close` does it
        self._file = gzip.GzipFile("", "wb", LEVEL, self._raw)
        self._encode = msgspec.msgpack.Encoder().encode
        self.frames = 0

    def put(self, entry: Entry) -> None:
        """Add one."""
        data = self._encode(entry)
        self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
        if type(entry) is RecordedFrames:
            self.frames += len(entry.frames)

    def close(self) -> None:
        """End the file; may be called twice."""
        self._file.close()
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


def entries(path: Path) -> Iterator[Entry]:
    """Yield what a recording holds. One that was cut off, as by a kill, ends with its last whole entry.

    Raises: RecordingDamaged, RecordingUnfit.
    """
    first = True
    try:
        with gzip.open(path, "rb") as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                length, checksum = _HEAD.unpack(head)
                data = file.read(length) if length < LARGEST else b""
                if len(data) < length:
                    break
                if zlib.crc32(data) != checksum:
                    if first:
                        break
                    raise RecordingDamaged(
                        f"{path} cannot be read: an entry is not what was written"
                    )
                entry = _decoder.decode(data)
                if first and type(entry) is not RecordingHeader:
                    break
                if type(entry) is RecordingHeader and entry.layout != LAYOUT:
                    raise RecordingUnfit(
                        f"{path} has entries of layout {entry.layout}, this waltap reads {LAYOUT}",
                        path=path,
                        version=entry.version,
                    )
                first = False
                yield entry
    except EOFError:
        pass
    except (OSError, zlib.error, *UNREADABLE) as cause:
        raise RecordingDamaged(f"{path} cannot be read: {cause}") from cause
    if first:
        raise RecordingDamaged(f"{path} is no recording")
