"""Read and write the file of a recording.

The file is gzip of entries. An entry has a size, a checksum and MessagePack. The first entry is the
`RecordingHeader`.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any, Final, Self

import msgspec

from waltap.base.files.durable_file import UNREADABLE, private
from waltap.base.property import Properties, declare
from waltap.changes.decode.decoder import Frame, ServerInfo
from waltap.changes.decode.relation import DataType, Relation
from waltap.errors import SourceError


class RecordingProperties(Properties):
    """The recording to run."""

    path: str = declare(
        "recording.path",
        summary="File that `waltap record` wrote.",
        examples=("monday.recording",),
        path=True,
    )


RecordingDamaged = SourceError.define("RecordingDamaged", "WT-2041")
RecordingUnfit = SourceError.define("RecordingUnfit", "WT-2042")

# Question → type of its answer. ``due`` and ``of`` belong to `NameResolution`; the last three
# belong to `Catalogue`. Recordings contain these names, so they must not change.
KINDS: Final[dict[str, Any]] = {
    "describe": Relation,
    "relation_at": Relation | None,
    "gone": tuple[frozenset[int], int],
    "captures": bool,
    "due": bool,
    "of": bytes,
    "relation": Relation | None,
    "data_type": DataType | None,
    "is_materialized_view": bool,
}

# Fields of `DecoderContext` that may be None, by their names in recordings.
OPTIONAL: Final = {
    "captures": "captures",
    "describe": "describe",
    "relation_at": "relation_at",
    "standings": "name_resolution",
    "gone": "gone",
}

# Answers to ``of`` may have any type, and only their equality matters, so ``repr`` is enough.
key_of = msgspec.msgpack.Encoder(enc_hook=repr, order="deterministic").encode
"""Encodes the arguments of a question, or an answer."""


def plain(argument: object) -> object:
    """Return an argument; a set or dictionary becomes a sorted list."""
    # The order of a set differs between processes, and keys are compared as bytes.
    return sorted(argument) if isinstance(argument, set | frozenset | dict) else argument


# Length and CRC-32 of an entry. gzip has its checksum at the end, which a file that was cut off
# lacks, so each entry has its own.
_HEAD: Final = Struct("<II")
LARGEST: Final = 1 << 31
# Version of the entries. It grows with a change that older waltaps cannot read.
LAYOUT: Final = 1
# The fastest level: recording must not slow the stream down.
LEVEL: Final = 1


class AnsweredCatalogue:
    """A catalogue whose answers are recorded, or come from a recording.

    ``ask`` returns the function for a question of `KINDS`.
    """

    def __init__(self, ask: Callable[[str], Callable[..., Any]]) -> None:
        self.relation, self.data_type = ask("relation"), ask("data_type")
        self.is_materialized_view = ask("is_materialized_view")


class AnsweredNames:
    """A name resolution as `AnsweredCatalogue` is a catalogue."""

    def __init__(self, ask: Callable[[str], Callable[..., Any]]) -> None:
        self.due, self.of = ask("due"), ask("of")


class RecordingHeader(msgspec.Struct, frozen=True, kw_only=True, tag="header"):
    """Describe the recorded waltap version, decoder and server."""

    identifier: str
    # waltap's version.
    version: str
    decoder: str
    options: dict[str, object]
    publications: tuple[str, ...]
    server: ServerInfo
    # The fields of `OPTIONAL` that the decoder's context had.
    asks: tuple[str, ...]
    layout: int = LAYOUT


class RecordedFrames(msgspec.Struct, frozen=True, tag="frames"):
    """Hold the frames of one call of `Decoder.feed`."""

    frames: list[Frame]


class RecordedAnswer(msgspec.Struct, frozen=True, tag="answer"):
    """Hold a decoder's question and its answer."""

    question: str
    # The arguments as MessagePack.
    key: bytes
    # The answer as MessagePack.
    value: bytes
    # `DecoderContext.valid_until` after the answer, None if it has not changed.
    valid_until: dict[int, int] | None = msgspec.field(name="unsettled", default=None)


class RecordingMark(msgspec.Struct, frozen=True, tag="mark"):
    """Mark the end LSN of the last transaction that has ended."""

    lsn: int


Entry = RecordingHeader | RecordedFrames | RecordedAnswer | RecordingMark

_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


class RecordingWriter:
    """Write one recording.

    An existing file is replaced. Raises: OSError.
    """

    def __init__(self, path: Path) -> None:
        self._raw = open(path, "wb", opener=private)  # noqa: SIM115 - `close` does it
        self._file = gzip.GzipFile("", "wb", LEVEL, self._raw)
        self._encode = msgspec.msgpack.Encoder().encode
        self.frames = 0

    def put(self, entry: Entry) -> None:
        data = self._encode(entry)
        self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
        if type(entry) is RecordedFrames:
            self.frames += len(entry.frames)
        elif type(entry) is RecordingMark:
            # A killed recorder must leave every complete transaction in the file.
            self._file.flush()

    def close(self) -> None:
        """End the file. May be called twice."""
        self._file.close()
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


def entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of a recording.

    A file that was cut off ends with its last complete entry, for example after a kill.

    Raises: RecordingDamaged, RecordingUnfit.
    """
    first = True
    try:
        with gzip.open(path, "rb") as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                length, checksum = _HEAD.unpack(head)
                # A damaged length must not exhaust the memory.
                data = file.read(length) if length < LARGEST else b""
                if len(data) < length:
                    break
                if zlib.crc32(data) != checksum:
                    # A wrong first entry means another kind of file, see the end.
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
        # The file was cut off.
        pass
    except (OSError, zlib.error, *UNREADABLE) as cause:
        raise RecordingDamaged(f"{path} cannot be read: {cause}") from cause
    if first:
        raise RecordingDamaged(f"{path} is no recording")
