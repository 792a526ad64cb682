"""The connector ``recording``: a recorded stream instead of a server."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from waltap.changes.decode.decoder import Catalogue, Decoder, DecoderContext
from waltap.changes.decode.message import Message
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import START, Position
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.ports.offsets.offset import Offset, PartitionOffset
from waltap.ports.source.connector import (
    ChangeStream,
    Connector,
    ConnectorContext,
    PreflightCheck,
    StartPosition,
)
from waltap.services.recording.file import (
    KINDS,
    AnsweredCatalogue,
    AnsweredNames,
    RecordedAnswer,
    RecordedFrames,
    RecordingDamaged,
    RecordingHeader,
    RecordingMark,
    RecordingProperties,
    RecordingUnfit,
    entries,
    key_of,
    plain,
)


class RecordingHead:
    """Read a recording's header, number of frames and end.

    Raises: RecordingDamaged.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.end, self.frames = path, 0, 0
        found = entries(path)
        header = next(found)
        assert isinstance(header, RecordingHeader)
        self.header = header
        for entry in found:
            if isinstance(entry, RecordingMark):
                self.end = max(self.end, entry.lsn)
            elif isinstance(entry, RecordedFrames):
                self.frames += len(entry.frames)


class RecordingConnector(Connector):
    """Stream the messages that the decoder makes of recorded frames.

    A recording has no snapshot.
    """

    def __init__(self, properties: RecordingProperties, context: ConnectorContext) -> None:
        """Raises: RecordingDamaged."""
        self._path, self._context = Path(properties.path), context
        header = next(entries(self._path))
        assert isinstance(header, RecordingHeader)
        self._header = header
        self._answers = _RecordedAnswers(self._path, header)
        self.server = header.server
        self.catalogue: Catalogue = AnsweredCatalogue(self._answers.answering)

    def check(self, offset: Offset | None) -> list[PreflightCheck]:
        """Check that the profile has the recorded decoder."""
        header = self._header
        found = f"{self._path}: {header.decoder}, {self.server.version or self.server.version_num}"
        if self._context.decoder.name != header.decoder:
            error = RecordingDamaged(
                f"{self._path} was recorded with the decoder {header.decoder}, and the profile has "
                f"{self._context.decoder.name}: set plugin.name={header.decoder}"
            )
            return [PreflightCheck.failed("recording", error)]
        return [PreflightCheck.ok("recording", found)]

    def prepare(self, offset: Offset | None) -> StartPosition:
        """Resume from ``offset`` if it belongs to this recording."""
        # The recording's identifier is stored as the slot. Another offset belongs to another stream.
        if offset is not None and offset.sole.slot == self._header.identifier:
            return StartPosition(snapshot=False, stream=True, offset=offset)
        partition = PartitionOffset(
            position=START,
            slot=self._header.identifier,
            database="",
            system_id=self.server.system_id,
            timeline=self.server.timeline,
            decoder=self._header.decoder,
        )
        return StartPosition(snapshot=False, stream=True, offset=Offset.of(partition))

    def snapshot(self, start: StartPosition) -> Iterator[SnapshotRows]:
        """Return no rows: only the stream was recorded."""
        return iter(())

    def stream(self, position: Position) -> ChangeStream:
        """Stream from the first frame."""
        # The decoder needs all its answers in order. The engine drops messages before ``position``.
        decoder = self._context.decoder.factory(self._answers.context())
        return _RecordedStream(self._path, decoder, self._answers)

    def describe(self, relation: Relation) -> Relation:
        return self._answers.described(relation)

    def undo(self) -> None:
        """Do nothing: the connector creates no object."""

    def close(self) -> None:
        """Do nothing: the connector holds no resource."""


class _RecordedStream(ChangeStream):
    """Feed the recorded frames to the decoder.

    After the last frame the stream is idle, like a server without changes.
    """

    confirms = False

    def __init__(self, path: Path, decoder: Decoder, answers: "_RecordedAnswers") -> None:
        self._entries, self._decoder, self._answers = entries(path), decoder, answers
        self._next: RecordedFrames | None = None
        self._idle = 0

    def receive(self, timeout: float) -> list[Message]:
        """Return the messages of the next frames. Raises: RecordingDamaged, DecodeError."""
        frames, self._next = self._next, None
        answers: list[RecordedAnswer] = []
        for entry in self._entries:
            if isinstance(entry, RecordedFrames):
                # Answers follow the frames they belong to, so read up to the next frames.
                if frames is not None:
                    self._next = entry
                    break
                frames = entry
            elif isinstance(entry, RecordedAnswer):
                answers.append(entry)
            elif isinstance(entry, RecordingMark):
                self._idle = max(self._idle, entry.lsn)
        self._answers.begin(answers)
        return [] if frames is None else self._decoder.feed(frames.frames)

    def confirm(self, end_lsn: int) -> None:
        """Do nothing: no server needs the position."""

    def idle_lsn(self) -> int:
        return self._idle

    def request_keepalive(self) -> None:
        """Do nothing: no server answers."""

    def close(self) -> None:
        self._entries.close()  # type: ignore[attr-defined]


class _RecordedAnswers:
    """Answer the decoder's questions in the recorded order."""

    def __init__(self, path: Path, header: RecordingHeader) -> None:
        self._path, self._header = path, header
        self._waiting: deque[RecordedAnswer] = deque()
        self._valid_until: dict[int, int] = {}
        self._relations: dict[bytes, Relation] = {}
        self._described: dict[int, Relation] = {}

    def begin(self, answers: Iterable[RecordedAnswer]) -> None:
        """Add the ``answers`` for the next frames."""
        self._waiting.extend(answers)

    def context(self) -> DecoderContext:
        header = self._header
        answering: dict[str, Any] = {
            name: self.answering(name)
            for name in ("describe", "relation_at", "gone", "captures")
            if name in header.asks
        }
        if "standings" in header.asks:
            answering["name_resolution"] = AnsweredNames(self.answering)
        return DecoderContext(
            server=header.server,
            catalogue=AnsweredCatalogue(self.answering),
            publications=header.publications,
            options=header.options,
            valid_until=self._valid_until,
            **answering,
        )

    def answering(self, question: str) -> Callable[..., Any]:
        """Return a function that answers ``question``.

        It raises RecordingUnfit for a question that was not recorded next.
        """

        def answer(*arguments: Any, **named: Any) -> Any:
            key = key_of([plain(each) for each in (*arguments, *named.values())])
            if not self._waiting or (self._waiting[0].question, self._waiting[0].key) != (
                question,
                key,
            ):
                raise RecordingUnfit(
                    f"the decoder asks {question}, which it did not when {self._path} was recorded",
                    path=self._path,
                    version=self._header.version,
                )
            noted = self._waiting.popleft()
            if noted.valid_until is not None:
                # The decoder holds this dictionary, so it is changed in place.
                self._valid_until.clear()
                self._valid_until.update(noted.valid_until)
            return self._value(noted)

        return answer

    def _value(self, noted: RecordedAnswer) -> Any:
        # Equal relations must be one object, as they were when recorded.
        if noted.value in self._relations:
            return self._relations[noted.value]
        value = msgspec.msgpack.decode(noted.value, type=KINDS[noted.question])
        if isinstance(value, Relation):
            self._relations[noted.value] = value
            self._described[value.oid] = value
        return value

    def described(self, relation: Relation) -> Relation:
        """Return the last description of ``relation``, or itself."""
        known = self._described.get(relation.oid)
        # A description with other columns belongs to another version of the table.
        if known is None or len(known.columns) != len(relation.columns):
            return relation
        return known
