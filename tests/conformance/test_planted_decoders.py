"""Decoders with one planted fault each: `DecoderSuite` finds every one.

All are pgoutput, which keeps every promise, with one thing made wrong.
"""

from dataclasses import replace

import msgspec
from tests.conformance.recorded_sessions import CONTEXT, recordings
from tests.harness.planted_faults import Faults, FindsFaults

import waltap_decoders.plugin
from waltap.decode.message import Begin, Commit, Delete, Insert, RelationSeen, Truncate, Update
from waltap.decode.tuple_image import ABSENT, UNCHANGED
from waltap.errors import DecodeError
from waltap_decoders.pgoutput import PgOutput
from waltap_testing.decoder_suite import DecoderRig, DecoderSuite

FAULTS = Faults()
RECORDINGS = recordings("pgoutput")
GOOD = {spec.name: spec for spec in waltap_decoders.plugin.register_decoders()}["pgoutput"]
ROWS = (Insert, Update, Delete)


@FAULTS.right
class Right(PgOutput):
    """``of`` gives what becomes of each message, ``declares`` what the spec says, ``only`` recordings."""

    declares = GOOD.capabilities
    only: tuple[str, ...] = ()

    def feed(self, frames):
        messages = super().feed(frames)
        return [message for message in messages if self.of(message)]

    def of(self, _message):
        return True


@FAULTS.found_by("test_damaged_frames_give_rows_or_decode_errors", IndexError)
class LeaksIndexError(Right):
    def feed(self, frames):
        try:
            return super().feed(frames)
        except DecodeError as cause:
            raise IndexError("index out of range") from cause


@FAULTS.found_by("test_every_truncation_is_refused")
class SwallowsBadFrames(Right):
    def feed(self, frames):
        messages = []
        for frame in frames:
            try:
                messages += super().feed([frame])
            except DecodeError:
                continue
        return messages


@FAULTS.found_by("test_what_no_decoder_knows_is_not_passed_over")
class PassesOverUnknownFrames(Right):
    """Refuses what is damaged, but for frames of a kind that it does not know."""

    def feed(self, frames):
        return super().feed([f for f in frames if f[1][:1] in b"BCORYIUDTMSEcAbPKrp" or not f[1]])


@FAULTS.found_by("test_grouping_of_frames_makes_no_difference")
class LosesTheLastOfAGroup(Right):
    """Decodes a frame when the next one arrives, and forgets the last of a call."""

    def feed(self, frames):
        messages = super().feed(frames)
        rows = [message for message in messages if isinstance(message, Insert)]
        return [m for m in messages if len(frames) == 1 or m is not (rows or [None])[-1]]


@FAULTS.found_by("test_it_does_all_it_declares")
@FAULTS.found_by("test_recordings_mean_what_is_written")
class FoldsUnchangedIntoNull(Right):
    def of(self, message):
        if isinstance(message, Update):
            message.new = tuple(None if v is UNCHANGED else v for v in message.new)
        return True


@FAULTS.found_by("test_old_keys_have_no_other_columns")
class FoldsAbsentIntoNull(Right):
    def of(self, message):
        if getattr(message, "old", ()):
            message.old = tuple(None if v is ABSENT else v for v in message.old)
        return True


@FAULTS.found_by("test_it_does_all_it_declares")
class ClaimsWhatNoRecordingShows(Right):
    only = ("pgoutput_v1 insert", "pgoutput_v1 truncate")


@FAULTS.found_by("test_it_does_only_what_it_declares")
class DoesWhatItDenies(Right):
    def __init__(self, context):
        super().__init__(context)
        self.capabilities = replace(self.capabilities, truncate=False)


@FAULTS.found_by("test_spec_and_decoder_agree")
class ClaimsMoreThanItsSpec(Right):
    declares = replace(GOOD.capabilities, streaming=False)


@FAULTS.found_by("test_the_same_shape_is_the_same_object")
class MakesANewRelationEveryTime(Right):
    def of(self, message):
        if isinstance(message, RelationSeen):
            message.relation = msgspec.structs.replace(message.relation)
        return True


@FAULTS.found_by("test_memory_does_not_grow_with_the_stream")
class KeepsEverything(Right):
    def __init__(self, context):
        super().__init__(context)
        self.history = []

    def of(self, message):
        self.history.append(message)
        return True


@FAULTS.found_by("test_damaged_frames_give_rows_or_decode_errors")
class BelievesLengths(Right):
    """Allocates what a length says before it looks whether that much is there."""

    def feed(self, frames):
        for _, payload in frames:
            if payload[:1] == b"I" and len(payload) > 13:
                bytearray(min(int.from_bytes(payload[9:13]), 1 << 28))
        return super().feed(frames)


@FAULTS.found_by("test_positions_never_go_back")
class NeverEnds(Right):
    """Gives end LSN 0, as if nothing could be confirmed."""

    def of(self, message):
        if isinstance(message, Commit):
            message.end_lsn = 0
        return True


@FAULTS.found_by("test_transactions_are_whole")
class DropsCommits(Right):
    def of(self, message):
        return not isinstance(message, Commit)


@FAULTS.found_by("test_it_does_all_it_declares")
class DropsTruncates(Right):
    def of(self, message):
        return not isinstance(message, Truncate)


@FAULTS.found_by("test_decoders_share_no_state", DecodeError)
class SharesState(Right):
    """Keeps its cache of relations in the class."""

    shared = None

    def __init__(self, context):
        super().__init__(context)
        SharesState.shared = self

    def feed(self, frames):
        return [m for f in frames for m in super(SharesState, SharesState.shared).feed([f])]


@FAULTS.found_by("test_tuples_are_as_long_as_their_relation")
class LeavesTrailingNullsOut(Right):
    def of(self, message):
        if isinstance(message, Insert) and message.new[-1] is None:
            message.new = message.new[:-1]
        return True


@FAULTS.found_by("test_errors_tell_where")
class PointsNowhere(Right):
    def feed(self, frames):
        try:
            return super().feed(frames)
        except DecodeError as cause:
            raise DecodeError(
                self.name, lsn=0, offset=0, expected="something else", found="this"
            ) from cause


@FAULTS.found_by("test_commit_times_are_there_where_declared")
class DeclaresTimesAndHasNone(Right):
    def of(self, message):
        if isinstance(message, Commit):
            message.commit_ts = 0
        return True


@FAULTS.found_by("test_publications_are_asked_for_where_filters_are_declared")
class ForgetsPublications(Right):
    def start_options(self):
        return {**super().start_options(), "publication_names": "waltap"}


class OfAnyRelation(Right):
    """Puts another relation in the place of each."""

    def __init__(self, context):
        super().__init__(context)
        self.shapes = {}

    def of(self, message):
        if isinstance(message, (RelationSeen, *ROWS)):
            message.relation = self.found(message.relation)
        return True


@FAULTS.found_by("test_recordings_mean_what_is_written")
class ForgetsTheSchema(OfAnyRelation):
    """Keeps shapes by the name of the table alone, as long as they have the columns that came."""

    def found(self, relation):
        known = self.shapes.setdefault(relation.table, relation)
        if known.schema == relation.schema:
            known = self.shapes[relation.table] = relation
        return known


@FAULTS.found_by("test_recordings_mean_what_is_written")
class KeepsARelationBeyondItsChange(OfAnyRelation):
    def found(self, relation):
        return self.shapes.setdefault(relation.name, relation)


@FAULTS.found_by("test_the_catalogue_is_not_asked_for_each_row")
class AsksForEachRow(Right):
    def __init__(self, context):
        super().__init__(context)
        self.catalogue = context.catalogue

    def of(self, message):
        if isinstance(message, ROWS):
            self.catalogue.relation(message.relation.schema, message.relation.table)
        return True


@FAULTS.found_by("test_recordings_mean_what_is_written")
class ExchangesCascadeAndRestart(Right):
    def of(self, message):
        if isinstance(message, Truncate):
            flags = message.cascade, message.restart_identity
            message.restart_identity, message.cascade = flags
        return True


@FAULTS.found_by("test_the_commit_of_another_transaction_is_refused")
class TakesAnyCommit(Right):
    """Takes a COMMIT for that of the transaction at hand without looking."""

    begun = None

    def feed(self, frames):
        return [message for frame in frames for message in self.one(frame)]

    def one(self, frame):
        lsn, payload = frame
        if payload[:1] == b"C" and len(payload) == 26 and self.begun is not None:
            payload = payload[:2] + self.begun.to_bytes(8, "big") + payload[10:]
        return super().feed([(lsn, payload)])

    def of(self, message):
        if isinstance(message, Begin):
            self.begun = message.commit_lsn
        return True


class TestPlantedDecoders(FindsFaults):
    suite = DecoderSuite
    faults = FAULTS
    kept_elsewhere = frozenset({"test_damaged_frames_give_rows_or_decode_errors"})

    def rig(self, plugin, _folder):
        spec = replace(GOOD, factory=plugin, capabilities=plugin.declares)
        chosen = [r for r in RECORDINGS if not plugin.only or r.name in plugin.only]
        return DecoderRig(spec, chosen, context=CONTEXT)
