"""Conformance tests for decoders.

Subclass `DecoderSuite` and define the fixture ``rig``:

    class TestMyDecoder(DecoderSuite):
        @pytest.fixture
        def rig(self):
            return DecoderRig(MY_SPEC, load_recordings(RECORDINGS))

The declared `DecoderCapabilities` and `DecoderRig.self_delimiting` decide which tests apply, never
the decoder's name.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, fields, replace
from itertools import cycle
from typing import Any

import pytest

from waltap.changes.decode.decoder import (
    Catalogue,
    Decoder,
    DecoderCapabilities,
    DecoderContext,
    Frame,
    ServerInfo,
)
from waltap.changes.decode.message import (
    Begin,
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
    SingleMessage,
    Skipped,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
    singly,
)
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, MissingValue, Tuple, Value
from waltap.changes.transactions.position import lsn_text
from waltap.errors import DecodeError
from waltap.ports.specs import DecoderSpec
from waltap_testing.damage import chance, damaged, evenly, foreign, noise, truncated
from waltap_testing.limits import measured
from waltap_testing.recording import FrameRecording, RelationShapes, StaticCatalogue, neutral
from waltap_testing.suite import RigSuite

STREAMED = (StreamStart, StreamStop, StreamCommit, StreamAbort, StreamPrepare)
PREPARED = (BeginPrepare, Prepare, CommitPrepared, RollbackPrepared, StreamPrepare)
ROWS = (Insert, Update, Delete)
# Capability → the messages that show it.
SHOWN_BY: Mapping[str, tuple[type[Message], ...]] = {
    "truncate": (Truncate,),
    "logical_messages": (LogicalMessage,),
    "origin": (Origin,),
    "streaming": STREAMED,
    "two_phase": PREPARED,
}
SPECIAL_NUMBERS = frozenset(("NaN", "Infinity", "-Infinity"))


def declared_by(capabilities: DecoderCapabilities) -> set[str]:
    """Return the names of the declared capabilities."""
    return {item.name for item in fields(capabilities) if getattr(capabilities, item.name)}


def carried_by(decoder: Decoder, recording: FrameRecording) -> set[str]:
    """Return the names of the capabilities that ``recording`` shows.

    A relation that arrives with its first row was derived from the row, so it does not show
    ``relations``.
    """
    shown: set[str] = set()
    for frame in recording.frames:
        messages = _fed(decoder, [frame])
        shown.update(_shown_by(messages))
        if not any(isinstance(message, (*ROWS, Truncate)) for message in messages):
            shown.update("relation_messages" for m in messages if isinstance(m, RelationSeen))
    return shown


def _fed(decoder: Decoder, frames: Sequence[Frame]) -> list[SingleMessage]:
    """Return the messages of ``frames``, a block's instead of it."""
    return list(singly(decoder.feed(frames)))


def _shown_by(messages: Iterable[Message]) -> Iterator[str]:
    for message in messages:
        yield from (name for name, kinds in SHOWN_BY.items() if isinstance(message, kinds))
        if isinstance(message, Commit | StreamCommit) and message.commit_ts:
            yield "commit_timestamps"
        if isinstance(message, Update | Delete) and message.old_kind is not OldTuple.NONE:
            yield "old_key" if message.old_kind is OldTuple.KEY else "old_row"
        for value in _values(message):
            if value is UNCHANGED:
                yield "unchanged"
            elif value in SPECIAL_NUMBERS:
                yield "special_numbers"


def _values(message: Message) -> Tuple:
    """Return the values of both images of a row."""
    new: Tuple = message.new if isinstance(message, Insert | Update) else ()
    return (*new, *message.old) if isinstance(message, Update | Delete) else new


# Far above the time of any recorded frame, far below the time of unbounded work.
SECONDS_PER_FRAME = 1.0
# A decoded frame may use this many bytes per byte of payload, plus this many in any case.
PEAK_BYTES_PER_BYTE, PEAK_BYTES = 200, 1 << 20
# Damaged frames over all recordings, and frames that are fed again to reach their state.
FRAMES_DAMAGED, REFEEDS = 240, 120_000
# A leak of 33 bytes for each frame exceeds the limit.
STREAM_FRAMES, RETAINED_BYTES = 4_000, 128 * 1024
ROWS_ASKED = 200

DEFAULT_CONTEXT = DecoderContext(
    server=ServerInfo(version_num=150020, version="15.20"), catalogue=StaticCatalogue()
)


@dataclass(frozen=True, slots=True)
class DecoderRig:
    """The decoder under test."""

    spec: DecoderSpec
    # Frames of whole sessions on a real server. Together they show every declared capability.
    recordings: Sequence[FrameRecording]
    # For the factory; each recording adds its options and server version.
    context: DecoderContext = DEFAULT_CONTEXT
    # True: no proper prefix of a frame is a valid frame (binary formats with lengths, JSON). False
    # for formats where a cut may go unnoticed (lines of text).
    self_delimiting: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Return the allowed names: the spec's names, or the output plugin's."""
        return (self.spec.name, *self.spec.aliases, self.spec.output_plugin)

    def build(self, recording: FrameRecording) -> Decoder:
        options = {**self.context.options, **recording.options, **self.spec.forced_options}
        server = self.context.server
        if recording.version_num:
            server = replace(server, version_num=recording.version_num)
        return self.spec.factory(replace(self.context, options=options, server=server))


class DecoderSuite(RigSuite):
    """Rules for every decoder."""

    needs = "a DecoderRig"

    # --- declarations ---

    def test_spec_and_decoder_agree(self, rig: DecoderRig) -> None:
        """The decoder has its spec's name and no further capabilities."""
        assert rig.recordings, "a decoder without recordings proves nothing"
        for recording in rig.recordings:
            decoder = rig.build(recording)
            assert decoder.name in rig.names
            more = declared_by(decoder.capabilities) - declared_by(rig.spec.capabilities)
            assert not more, f"{recording.name}: the instance claims {more}, the spec does not"

    def test_start_options_are_texts_and_repeatable(self, rig: DecoderRig) -> None:
        """Options of START_REPLICATION are texts, the same at every call."""
        for recording in rig.recordings:
            options = rig.build(recording).start_options()
            assert all(isinstance(text, str) for item in options.items() for text in item)
            assert rig.build(recording).start_options() == options

    def test_publications_are_asked_for_where_filters_are_declared(self, rig: DecoderRig) -> None:
        """Options name the publications if ``filters`` is declared.

        The server then applies the publications.
        """
        if not rig.spec.capabilities.publication_filters:
            pytest.skip("declares no filters")
        context = replace(rig.context, publications=("pub_one", "pub_two"))
        named = " ".join(rig.spec.factory(context).start_options().values())
        assert "pub_one" in named
        assert "pub_two" in named

    # --- meaning of frames ---

    def test_recordings_mean_what_is_written(self, rig: DecoderRig) -> None:
        written = [recording for recording in rig.recordings if recording.means is not None]
        assert written, "no recording says what its frames mean"
        for recording in written:
            decoder, shapes = rig.build(recording), RelationShapes()
            for number, (frame, means) in enumerate(
                zip(recording.frames, recording.means or (), strict=True)
            ):
                found = neutral(decoder.feed([frame]), shapes)
                assert found == means, f"{recording.name}, frame {number}"

    def test_grouping_of_frames_makes_no_difference(self, rig: DecoderRig) -> None:
        for recording in rig.recordings:
            ungrouped = neutral(rig.build(recording).feed(recording.frames))
            random = chance(recording.name)
            for sizes in ([1], [2], [3], [7], [random.randint(0, 9) for _ in range(20)]):
                parts = _feed_in_groups(rig.build(recording), recording.frames, sizes)
                assert neutral(parts) == ungrouped, f"{recording.name}, in groups of {sizes}"

    def test_decoders_share_no_state(self, rig: DecoderRig) -> None:
        """Two sessions in one process do not affect each other."""
        recording = max(rig.recordings, key=lambda r: len(r.frames))
        alone = neutral(rig.build(recording).feed(recording.frames))
        catalogue: Any = _WatchedCatalogue(rig.context.catalogue)
        rig = replace(rig, context=replace(rig.context, catalogue=catalogue))
        one, other = rig.build(recording), rig.build(recording)
        ones: list[Message] = []
        others: list[Message] = []
        for frame in recording.frames:
            ones += one.feed([frame])
            others += other.feed([frame])
        assert neutral(ones) == alone
        assert neutral(others) == alone
        # A table may have changed before the next session.
        shared = set(_relations(ones)) & set(_relations(others))
        assert not shared, f"sessions share {sorted(each.name for each in shared)}"

    # --- rules of messages ---

    def test_transactions_are_whole(self, rig: DecoderRig) -> None:
        """Changes are inside a transaction or a segment of one.

        Each begin has its end before the next begin.
        """
        for recording, messages in _decoded(rig):
            where: Message | None = None
            for number, message in enumerate(messages):
                at = f"{recording.name}, message {number}: {type(message).__name__}"
                if isinstance(message, Begin | BeginPrepare | StreamStart):
                    assert where is None, f"{at} inside {type(where).__name__}"
                    where = message
                elif isinstance(message, Commit | Prepare | StreamStop):
                    assert where is not None, f"{at} without its begin"
                    _assert_same_transaction(where, message, at)
                    where = None
                elif isinstance(message, STREAMED + PREPARED):
                    assert where is None, f"{at} inside {type(where).__name__}"
                elif isinstance(message, LogicalMessage) and not message.transactional:
                    assert where is None, f"{at} is not transactional and is inside one"
                else:
                    assert where is not None, f"{at} outside any transaction"

    def test_positions_never_go_back(self, rig: DecoderRig) -> None:
        """The ends of transactions rise, and each follows its commit."""
        ends = Commit, Prepare, CommitPrepared, StreamCommit, StreamPrepare
        for recording, messages in _decoded(rig):
            last = 0
            for message in messages:
                if isinstance(message, ends):
                    at = f"{recording.name}: {type(message).__name__} {lsn_text(message.end_lsn)}"
                    assert message.end_lsn >= last, f"{at} after {lsn_text(last)}"
                    assert message.end_lsn > 0, f"{at}: nothing could be confirmed"
                    last = message.end_lsn

    def test_tuples_are_as_long_as_their_relation(self, rig: DecoderRig) -> None:
        """Every tuple has one value per column; announced old tuples exist."""
        for recording, messages in _decoded(rig):
            for message in messages:
                if not isinstance(message, ROWS):
                    continue
                at, count = f"{recording.name}: {message}", len(message.relation.columns)
                if not isinstance(message, Delete):
                    assert len(message.new) == count, at
                if not isinstance(message, Insert):
                    expected = 0 if message.old_kind is OldTuple.NONE else count
                    assert len(message.old) == expected, at

    def test_old_keys_have_no_other_columns(self, rig: DecoderRig) -> None:
        """A key-only old tuple has ABSENT, not NULL, outside the identity."""
        for at, relation, column, value in _old_values(rig, OldTuple.KEY):
            # Not every decoder's messages describe the identity.
            if any(each.in_identity for each in relation.columns):
                assert column.in_identity or value is ABSENT, f"{at} is {value!r} in a key"

    def test_full_old_tuples_have_every_column(self, rig: DecoderRig) -> None:
        """A full old tuple has every column's value or NULL."""
        for at, _, _, value in _old_values(rig, OldTuple.FULL):
            assert not isinstance(value, MissingValue), f"{at} is {value} in a full old tuple"

    def test_the_same_shape_is_the_same_object(self, rig: DecoderRig) -> None:
        """An unchanged table keeps its relation object.

        Codecs are compiled per relation object.
        """
        for recording, messages in _decoded(rig):
            current: dict[str, Relation] = {}
            for relation in _relations(messages):
                known = current.get(relation.name)
                if known is not None and known is not relation:
                    assert not known.same_shape(relation), (
                        f"{recording.name}: {relation.name} came again, unchanged, as a new object"
                    )
                current[relation.name] = relation

    # --- honesty ---

    def test_it_does_only_what_it_declares(self, rig: DecoderRig) -> None:
        for recording in rig.recordings:
            decoder = rig.build(recording)
            shown = carried_by(decoder, recording)
            more = shown - declared_by(decoder.capabilities)
            assert not more, f"{recording.name} shows {sorted(more)}, which it does not declare"

    def test_it_does_all_it_declares(
        self, rig: DecoderRig, record_property: Callable[[str, object], None]
    ) -> None:
        shown: set[str] = set()
        for recording in rig.recordings:
            shown |= carried_by(rig.build(recording), recording)
        # Filters act on the server: no frame shows them.
        claimed = declared_by(rig.spec.capabilities) - {"publication_filters"}
        unseen = claimed - shown
        record_property("waltap", f"decoder {rig.spec.name}: shows {', '.join(sorted(shown))}")
        assert not unseen, f"declared, but no recording shows it: {sorted(unseen)}"

    def test_commit_times_are_there_where_declared(self, rig: DecoderRig) -> None:
        for recording in rig.recordings:
            decoder = rig.build(recording)
            declared = decoder.capabilities.commit_timestamps
            for message in _fed(decoder, recording.frames):
                if isinstance(message, Commit | StreamCommit):
                    at = f"{recording.name}: commit_ts is {message.commit_ts}"
                    assert (message.commit_ts != 0) == declared, at

    # --- bad input ---

    def test_every_truncation_is_refused(self, rig: DecoderRig) -> None:
        """A frame that ends early raises DecodeError.

        It never gives fewer values or no message.
        """
        if not rig.self_delimiting:
            pytest.skip("the format does not show where a frame ends")
        for case in _cases(rig):
            for what, payload in truncated(case.payload, case.variants):
                outcome = case.feed(payload)
                assert isinstance(outcome, DecodeError), f"{case}, {what}: {_outcome(outcome)}"

    def test_damaged_frames_give_rows_or_decode_errors(self, rig: DecoderRig) -> None:
        """A damaged frame gives whole messages or a DecodeError, soon."""
        for case in _cases(rig):
            random = chance(f"{case}")
            for what, payload in (
                *truncated(case.payload, case.variants // 4),
                *damaged(case.payload, case.variants, random),
            ):
                _assert_sound(case, what, payload)

    def test_random_bytes_give_decode_errors(self, rig: DecoderRig) -> None:
        for recording in rig.recordings:
            firsts = sorted({payload[0] for _, payload in recording.frames if payload})
            random = chance(f"noise {recording.name}")
            case = _DamageCase(rig, recording, len(recording.frames) // 2, 0)
            for what, payload in noise(60, random, firsts):
                _assert_sound(case, f"{what}: {payload.hex()}", payload)

    def test_what_no_decoder_knows_is_not_passed_over(self, rig: DecoderRig) -> None:
        """A frame of an unknown kind raises DecodeError.

        Its contents would be lost silently otherwise.
        """
        for case in _cases(rig):
            frames = [payload for _, payload in case.recording.frames]
            known = case.feed(case.payload)
            reported = len(_meaningful(known))
            for what, payload in foreign(case.payload, frames) if reported else ():
                outcome = case.feed(payload)
                if not isinstance(outcome, DecodeError):
                    at = f"{case}, {what}: {_outcome(outcome)}"
                    assert isinstance(outcome, list), at
                    assert len(_meaningful(outcome)) >= reported, f"skipped: {at}"

    def test_frames_out_of_order_give_decode_errors_only(self, rig: DecoderRig) -> None:
        for recording in rig.recordings:
            random = chance(f"order {recording.name}")
            for _ in range(30):
                frames = list(recording.frames)
                for _ in range(random.randint(1, 3)):
                    at, to = random.randrange(len(frames)), random.randrange(len(frames))
                    change = random.randrange(3)
                    if change == 0 and len(frames) > 1:
                        del frames[at]
                    elif change == 1:
                        frames.insert(to, frames[at])
                    else:
                        frames[at], frames[to] = frames[to], frames[at]
                with suppress(DecodeError):
                    rig.build(recording).feed(frames)

    def test_the_commit_of_another_transaction_is_refused(
        self, rig: DecoderRig, record_property: Callable[[str, object], None]
    ) -> None:
        """The COMMIT of another transaction raises DecodeError.

        The frames between were lost, and the position would pass them. This applies where a COMMIT
        identifies its transaction.
        """
        tried = 0
        for recording in rig.recordings:
            for number, (frame, other) in _commits(rig, recording):
                tried += 1
                outcome = _DamageCase(rig, recording, number, 0).feed(other)
                at = f"{recording.name}, frame {number}: {other!r} instead of {frame!r}"
                assert isinstance(outcome, DecodeError), f"{at}: {_outcome(outcome)}"
        if not tried:
            why = "no recording has two frames that are a COMMIT and nothing else"
            record_property(
                "waltap",
                f"decoder {rig.spec.name}: NOT TESTED: the COMMIT of another transaction: {why}",
            )
            pytest.skip(why)

    def test_errors_name_the_place(self, rig: DecoderRig) -> None:
        """A DecodeError names the decoder, the LSN and a valid offset."""
        reported = 0
        for case in _cases(rig):
            for what, payload in damaged(case.payload, 20, chance(f"where {case}")):
                outcome = case.feed(payload)
                if isinstance(outcome, DecodeError):
                    reported += 1
                    at = f"{case}, {what}: {outcome}"
                    assert outcome.decoder in rig.names, at
                    assert outcome.lsn == case.lsn, at
                    assert 0 <= outcome.offset <= len(payload), at
                    assert outcome.expected, at
        # Without any error the test would check nothing.
        assert reported, "no damage at all was noticed"

    # --- bounds ---

    def test_memory_does_not_grow_with_the_stream(self, rig: DecoderRig) -> None:
        for recording in rig.recordings:
            decoder = rig.build(recording)
            frame = _repeatable(decoder, recording)
            if frame is None:
                continue
            # Warm up first: caches fill once and do not grow with the stream.
            _swallow(decoder, frame, STREAM_FRAMES // 4)
            gc.collect()
            with measured() as cost:
                _swallow(decoder, frame, STREAM_FRAMES)
                gc.collect()
            assert cost.retained < RETAINED_BYTES, (
                f"{recording.name}: {cost.retained} bytes kept after {STREAM_FRAMES} equal frames"
            )
            return
        pytest.fail("no recording has a frame that can be repeated: record a row in a transaction")

    def test_the_catalogue_is_not_asked_for_each_row(self, rig: DecoderRig) -> None:
        """The decoder queries the catalogue for new relations, not for rows.

        Each question is a query on the server.
        """
        for recording in rig.recordings:
            asked: Any = _WatchedCatalogue(rig.context.catalogue)
            watched = replace(rig, context=replace(rig.context, catalogue=asked))
            decoder = watched.build(recording)
            frame = _repeatable(decoder, recording)
            if frame is not None:
                before = asked.times
                _swallow(decoder, frame, ROWS_ASKED)
                times = asked.times - before
                assert times < ROWS_ASKED // 10, (
                    f"{recording.name}: the catalogue was asked {times} times for {ROWS_ASKED} rows"
                )

    def test_memory_is_in_proportion_to_a_frame(self, rig: DecoderRig) -> None:
        for recording in rig.recordings:
            decoder = rig.build(recording)
            for number, frame in enumerate(recording.frames):
                with measured() as cost:
                    decoder.feed([frame])
                limit = PEAK_BYTES + PEAK_BYTES_PER_BYTE * len(frame[1])
                assert cost.peak <= limit, f"{recording.name}, frame {number}: {cost.peak} bytes"


class _WatchedCatalogue:
    """A catalogue that counts its calls, and answers with new objects."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue, self.times = catalogue, 0

    def __getattr__(self, question: str) -> Any:
        self.times += 1
        ask = getattr(self._catalogue, question)
        return lambda *about, **named: copy(ask(*about, **named))


def _commits(
    rig: DecoderRig, recording: FrameRecording
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Yield each frame that is only a COMMIT, with another COMMIT."""
    decoder, found = rig.build(recording), list[tuple[int, bytes]]()
    for number, frame in enumerate(recording.frames):
        messages = _fed(decoder, [frame])
        if len(messages) == 1 and isinstance(messages[0], Commit):
            found.append((number, frame[1]))
    for (number, payload), (_, other) in zip(found, found[1:] + found[:1], strict=True):
        if payload != other:
            yield number, (payload, other)


@dataclass(slots=True)
class _DamageCase:
    """One frame of a recording, replaced by a damaged one.

    The decoder has received the frames before it.
    """

    rig: DecoderRig
    recording: FrameRecording
    number: int
    variants: int

    def __str__(self) -> str:
        return f"{self.recording.name}, frame {self.number}"

    @property
    def lsn(self) -> int:
        return self.recording.frames[self.number][0]

    @property
    def payload(self) -> bytes:
        return self.recording.frames[self.number][1]

    def decoder(self) -> Decoder:
        decoder = self.rig.build(self.recording)
        decoder.feed(self.recording.frames[: self.number])
        return decoder

    def feed(self, payload: bytes, decoder: Decoder | None = None) -> list[Message] | Exception:
        """Feed ``payload`` in the frame's place; return messages or the exception."""
        decoder = decoder or self.decoder()
        try:
            return decoder.feed([(self.lsn, payload)])
        except Exception as error:  # noqa: BLE001 - which one it is, is the question
            return error


def _cases(rig: DecoderRig) -> Iterator[_DamageCase]:
    """Yield frames of every recording and kind, within a budget."""
    for recording in rig.recordings:
        kinds: dict[bytes, list[int]] = {}
        for number, (_, payload) in enumerate(recording.frames):
            if payload:
                kinds.setdefault(payload[:1], []).append(number)
        budget = max(3, FRAMES_DAMAGED // len(rig.recordings))
        each = max(1, budget // max(1, len(kinds)))
        numbers = sorted(n for found in kinds.values() for n in evenly(found, each))
        # Each damaged frame needs the frames before it fed again.
        cost = sum(number + 1 for number in numbers)
        variants = max(4, min(120, REFEEDS // max(1, cost * len(rig.recordings))))
        for number in numbers:
            yield _DamageCase(rig, recording, number, variants)


def _assert_sound(case: _DamageCase, what: str, payload: bytes) -> None:
    """Check the outcome, time and memory of one damaged payload."""
    decoder = case.decoder()
    with measured() as cost:
        outcome = case.feed(payload, decoder)
    at = f"{case}, {what}"
    assert not isinstance(outcome, Exception) or isinstance(outcome, DecodeError), (
        f"{at}: {_outcome(outcome)}"
    )
    for message in singly(outcome if isinstance(outcome, list) else ()):
        if isinstance(message, ROWS):
            sizes = {len(getattr(message, image, ())) for image in ("new", "old")}
            assert sizes <= {0, len(message.relation.columns)}, f"{at}: a partial row"
    assert cost.seconds < SECONDS_PER_FRAME, f"{at}: took {cost.seconds:.1f} s"
    limit = PEAK_BYTES + PEAK_BYTES_PER_BYTE * len(payload)
    assert cost.peak <= limit, f"{at}: took {cost.peak} bytes for {len(payload)}"


def _meaningful(outcome: list[Message] | Exception) -> list[Message]:
    found = [] if isinstance(outcome, Exception) else outcome
    return [message for message in found if not isinstance(message, Skipped)]


def _outcome(outcome: list[Message] | Exception) -> str:
    if isinstance(outcome, Exception):
        return f"{type(outcome).__name__}: {outcome}"
    return f"{len(outcome)} messages: {neutral(outcome[:3])}"


def _decoded(rig: DecoderRig) -> Iterator[tuple[FrameRecording, list[SingleMessage]]]:
    for recording in rig.recordings:
        yield recording, _fed(rig.build(recording), recording.frames)


def _old_values(rig: DecoderRig, kind: OldTuple) -> Iterator[tuple[str, Relation, Column, Value]]:
    """Yield each old tuple's place, relation, column and value."""
    for recording, messages in _decoded(rig):
        for message in messages:
            if isinstance(message, Update | Delete) and message.old_kind is kind:
                relation = message.relation
                for column, value in zip(relation.columns, message.old, strict=True):
                    at = f"{recording.name}: {relation.name}.{column.name}"
                    yield at, relation, column, value


def _feed_in_groups(
    decoder: Decoder, frames: Sequence[Frame], sizes: Sequence[int]
) -> list[Message]:
    """Feed ``frames`` in groups of the given ``sizes``, repeatedly."""
    messages: list[Message] = []
    at, next_sizes = 0, cycle(sizes)
    while at < len(frames):
        size = next(next_sizes)
        messages += decoder.feed(frames[at : at + size])
        at += size
    return messages


def _relations(messages: Iterable[Message]) -> Iterator[Relation]:
    for message in singly(messages):
        if isinstance(message, RelationSeen | Insert | Update | Delete):
            yield message.relation
        elif isinstance(message, Truncate):
            yield from message.relations


def _assert_same_transaction(begin: Message, end: Message, at: str) -> None:
    if isinstance(begin, Begin) and isinstance(end, Commit):
        assert begin.xid in (end.xid, 0), f"{at}: xid {end.xid}, its Begin has {begin.xid}"
        assert begin.commit_lsn in (0, end.commit_lsn), f"{at}: commit LSN differs from its Begin's"
        assert end.end_lsn >= end.commit_lsn, f"{at}: ends before it commits"
    elif isinstance(begin, BeginPrepare) and isinstance(end, Prepare):
        assert (begin.xid, begin.gid) == (end.xid, end.gid), f"{at}: not the one that began"
    else:
        pair = (type(begin), type(end))
        assert pair == (StreamStart, StreamStop), f"{at} ends a {type(begin).__name__}"


def _repeatable(decoder: Decoder, recording: FrameRecording) -> Frame | None:
    """Feed frames up to one that may repeat, and return it.

    It has rows only, or a whole transaction.
    """
    for frame in recording.frames:
        messages = [m for m in _fed(decoder, [frame]) if not isinstance(m, Skipped)]
        rows = all(isinstance(message, ROWS) for message in messages)
        is_transaction = any(isinstance(m, Begin) for m in messages) and isinstance(
            messages[-1], Commit
        )
        if messages and (rows or is_transaction):
            return frame
    return None


def _swallow(decoder: Decoder, frame: Frame, count: int) -> None:
    group = [frame] * 100
    for _ in range(count // 100):
        decoder.feed(group)
