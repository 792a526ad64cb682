"""What a recording shows that a decoder carries, by the names of `DecoderCapabilities`."""

from collections.abc import Iterable, Iterator
from dataclasses import fields

from waltap.decode.decoder import Decoder, DecoderCapabilities
from waltap.decode.message import (
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldTuple,
    Origin,
    Prepare,
    RelationSeen,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)
from waltap.decode.tuple_image import UNCHANGED, Tuple
from waltap_testing.recording import FrameRecording

__all__ = ["PREPARED", "ROWS", "STREAMED", "carried_by", "declared_by"]

STREAMED = (StreamStart, StreamStop, StreamCommit, StreamAbort, StreamPrepare)
PREPARED = (BeginPrepare, Prepare, CommitPrepared, RollbackPrepared, StreamPrepare)
ROWS = (Insert, Update, Delete)
SPECIAL_NUMBERS = frozenset(("NaN", "Infinity", "-Infinity"))


def declared_by(capabilities: DecoderCapabilities) -> set[str]:
    """Return the names of the capabilities that are declared."""
    return {item.name for item in fields(capabilities) if getattr(capabilities, item.name)}


def carried_by(decoder: Decoder, recording: FrameRecording) -> set[str]:
    """Return the names of the capabilities that ``recording`` shows.

    A relation that comes with its first row was made from the row: it was not announced.
    """
    shown: set[str] = set()
    for frame in recording.frames:
        messages = decoder.feed([frame])
        shown.update(_shown_by(messages))
        if not any(isinstance(message, (*ROWS, Truncate)) for message in messages):
            shown.update("relations" for m in messages if isinstance(m, RelationSeen))
    return shown


def _shown_by(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        match message:
            case Truncate():
                yield "truncate"
            case LogicalMessage():
                yield "logical_messages"
            case Origin():
                yield "origin"
            case Commit() | StreamCommit() if message.commit_ts:
                yield "commit_timestamps"
            case Insert():
                yield from _shown_values(message.new)
            case Update():
                yield from _shown_old(message.old_kind)
                yield from _shown_values(message.new)
                yield from _shown_values(message.old)
            case Delete():
                yield from _shown_old(message.old_kind)
                yield from _shown_values(message.old)
        if isinstance(message, STREAMED):
            yield "streaming"
        if isinstance(message, PREPARED):
            yield "two_phase"


def _shown_old(kind: OldTuple) -> Iterator[str]:
    if kind is OldTuple.KEY:
        yield "old_key"
    elif kind is OldTuple.FULL:
        yield "old_row"


def _shown_values(values: Tuple) -> Iterator[str]:
    for value in values:
        if value is UNCHANGED:
            yield "unchanged"
        elif value in SPECIAL_NUMBERS:
            yield "special_numbers"
