"""Decoders with one planted fault each. ``caught_by`` names the promise of the suite it breaks.

All are pgoutput, which keeps every promise, with one thing made wrong.
"""

from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest

import waltap_decoders.plugin
from waltap.decode.decoder import DecoderCapabilities
from waltap.decode.message import Begin, Commit, Delete, Insert, RelationSeen, Truncate, Update
from waltap.decode.tuple_image import ABSENT, UNCHANGED
from waltap.errors import DecodeError
from waltap_testing.decoder_suite import DecoderRig, DecoderSuite
from tests.conformance.recorded_sessions import CONTEXT, recordings
from waltap_decoders.pgoutput import PgOutput

RECORDINGS = recordings("pgoutput")
GOOD = {spec.name: spec for spec in waltap_decoders.plugin.register_decoders()}["pgoutput"]


class Planted(DecoderSuite):
    """The suite on a faulty decoder."""

    decoder: ClassVar[type[PgOutput]]
    declares: ClassVar[DecoderCapabilities] = GOOD.capabilities
    only: ClassVar[tuple[str, ...]] = ()

    @pytest.fixture
    def rig(self):
        spec = replace(GOOD, factory=self.decoder, capabilities=self.declares)
        chosen = [r for r in RECORDINGS if not self.only or r.name in self.only]
        return DecoderRig(spec, chosen, context=CONTEXT)


class LeaksIndexError(PgOutput):
    def feed(self, frames):
        try:
            return super().feed(frames)
        except DecodeError as cause:
            raise IndexError("index out of range") from cause


class TestLeaksIndexError(Planted):
    decoder = LeaksIndexError
    caught_by = "test_damaged_frames_give_rows_or_decode_errors"


class SwallowsBadFrames(PgOutput):
    def feed(self, frames):
        messages = []
        for frame in frames:
            try:
                messages += super().feed([frame])
            except DecodeError:
                continue
        return messages


class TestSwallowsBadFrames(Planted):
    decoder = SwallowsBadFrames
    caught_by = "test_every_truncation_is_refused"


class PassesOverUnknownFrames(PgOutput):
    """Refuses what is damaged, but for frames of a kind that it does not know."""

    def feed(self, frames):
        known = [
            frame for frame in frames if frame[1][:1] in b"BCORYIUDTMSEcAbPKrp" or not frame[1]
        ]
        return super().feed(known)


class TestPassesOverUnknownFrames(Planted):
    decoder = PassesOverUnknownFrames
    caught_by = "test_what_no_decoder_knows_is_not_passed_over"


class LosesTheLastOfAGroup(PgOutput):
    """Decodes a frame when the next one arrives, and forgets the last of a call."""

    def feed(self, frames):
        messages = super().feed(frames)
        rows = [message for message in messages if isinstance(message, Insert)]
        return [m for m in messages if len(frames) == 1 or m is not (rows or [None])[-1]]


class TestDependsOnGrouping(Planted):
    decoder = LosesTheLastOfAGroup
    caught_by = "test_grouping_of_frames_makes_no_difference"


class FoldsUnchanged(PgOutput):
    def feed(self, frames):
        messages = super().feed(frames)
        for message in messages:
            if isinstance(message, Update):
                message.new = tuple(None if v is UNCHANGED else v for v in message.new)
        return messages


class TestFoldsUnchangedIntoNull(Planted):
    decoder = FoldsUnchanged
    caught_by = "test_it_does_all_it_declares"


class TestFoldsUnchangedAgainstTheRecording(Planted):
    decoder = FoldsUnchanged
    caught_by = "test_recordings_mean_what_is_written"


class FoldsAbsent(PgOutput):
    def feed(self, frames):
        messages = super().feed(frames)
        for message in messages:
            if getattr(message, "old", ()):
                message.old = tuple(None if v is ABSENT else v for v in message.old)
        return messages


class TestFoldsAbsentIntoNull(Planted):
    decoder = FoldsAbsent
    caught_by = "test_old_keys_have_no_other_columns"


class TestClaimsWhatNoRecordingShows(Planted):
    decoder = PgOutput
    only = ("pgoutput_v1 insert", "pgoutput_v1 truncate")
    caught_by = "test_it_does_all_it_declares"


class HidesTruncate(PgOutput):
    def __init__(self, context):
        super().__init__(context)
        self.capabilities = replace(self.capabilities, truncate=False)


class TestDoesWhatItDenies(Planted):
    decoder = HidesTruncate
    caught_by = "test_it_does_only_what_it_declares"


class ClaimsMoreThanItsSpec(PgOutput):
    pass


class TestInstanceClaimsMoreThanItsSpec(Planted):
    decoder = ClaimsMoreThanItsSpec
    declares = replace(GOOD.capabilities, streaming=False)
    caught_by = "test_spec_and_decoder_agree"


class NewObjectEveryTime(PgOutput):
    def feed(self, frames):
        messages = super().feed(frames)
        for message in messages:
            if isinstance(message, RelationSeen):
                message.relation = msgspec.structs.replace(message.relation)
        return messages


class TestMakesANewRelationEveryTime(Planted):
    decoder = NewObjectEveryTime
    caught_by = "test_the_same_shape_is_the_same_object"


class KeepsEverything(PgOutput):
    def __init__(self, context):
        super().__init__(context)
        self.history = []

    def feed(self, frames):
        messages = super().feed(frames)
        self.history += messages
        return messages


class TestKeepsEverything(Planted):
    decoder = KeepsEverything
    caught_by = "test_memory_does_not_grow_with_the_stream"


class BelievesLengths(PgOutput):
    """Allocates what a length says before it looks whether that much is there."""

    def feed(self, frames):
        for _, payload in frames:
            if payload[:1] == b"I" and len(payload) > 13:
                bytearray(min(int.from_bytes(payload[9:13]), 1 << 28))
        return super().feed(frames)


class TestBelievesLengths(Planted):
    decoder = BelievesLengths
    caught_by = "test_damaged_frames_give_rows_or_decode_errors"


class EndsAtTheCommit(PgOutput):
    """Gives end LSN 0, as if nothing could be confirmed."""

    def feed(self, frames):
        messages = super().feed(frames)
        for message in messages:
            if isinstance(message, Commit):
                message.end_lsn = 0
        return messages


class TestNeverEnds(Planted):
    decoder = EndsAtTheCommit
    caught_by = "test_positions_never_go_back"


class DropsCommits(PgOutput):
    def feed(self, frames):
        return [m for m in super().feed(frames) if not isinstance(m, Commit)]


class TestDropsCommits(Planted):
    decoder = DropsCommits
    caught_by = "test_transactions_are_whole"


class SharesState(PgOutput):
    """Keeps its cache of relations in the class."""

    shared = None

    def __init__(self, context):
        super().__init__(context)
        SharesState.shared = self

    def feed(self, frames):
        return [m for f in frames for m in super(SharesState, SharesState.shared).feed([f])]


class TestSharesStateBetweenSessions(Planted):
    decoder = SharesState
    caught_by = "test_decoders_share_no_state"


class ShortRows(PgOutput):
    def feed(self, frames):
        messages = super().feed(frames)
        for message in messages:
            if isinstance(message, Insert) and message.new[-1] is None:
                message.new = message.new[:-1]
        return messages


class TestLeavesTrailingNullsOut(Planted):
    decoder = ShortRows
    caught_by = "test_tuples_are_as_long_as_their_relation"


class PointsNowhere(PgOutput):
    def feed(self, frames):
        try:
            return super().feed(frames)
        except DecodeError as cause:
            raise DecodeError(
                self.name, lsn=0, offset=0, expected="something else", found="this"
            ) from cause


class TestErrorsDoNotSayWhere(Planted):
    decoder = PointsNowhere
    caught_by = "test_errors_tell_where"


class NoCommitTime(PgOutput):
    def feed(self, frames):
        messages = super().feed(frames)
        for message in messages:
            if isinstance(message, Commit):
                message.commit_ts = 0
        return messages


class TestDeclaresTimesAndHasNone(Planted):
    decoder = NoCommitTime
    caught_by = "test_commit_times_are_there_where_declared"


class ForgetsPublications(PgOutput):
    def start_options(self):
        options = super().start_options()
        options["publication_names"] = "waltap"
        return options


class TestForgetsPublications(Planted):
    decoder = ForgetsPublications
    caught_by = "test_publications_are_asked_for_where_filters_are_declared"


class DropsTruncates(PgOutput):
    def feed(self, frames):
        return [m for m in super().feed(frames) if not isinstance(m, Truncate)]


class TestDeclaresTruncateAndDropsIt(Planted):
    decoder = DropsTruncates
    caught_by = "test_it_does_all_it_declares"


class OfAnyRelation(PgOutput):
    """Puts another relation in the place of each. Right where it is the same."""

    def feed(self, frames):
        messages = super().feed(frames)
        for message in messages:
            if isinstance(message, RelationSeen | Insert | Update | Delete):
                message.relation = self.found(message.relation)
        return messages


class ForgetsTheSchema(OfAnyRelation):
    """Keeps shapes by the name of the table alone, as long as they have the columns that came."""

    def __init__(self, context):
        super().__init__(context)
        self.shapes = {}

    def found(self, relation):
        known = self.shapes.setdefault(relation.table, relation)
        if known.schema == relation.schema:
            known = self.shapes[relation.table] = relation
        return known


class TestForgetsTheSchema(Planted):
    decoder = ForgetsTheSchema
    caught_by = "test_recordings_mean_what_is_written"


class KeepsTheFirstShape(OfAnyRelation):
    def __init__(self, context):
        super().__init__(context)
        self.shapes = {}

    def found(self, relation):
        return self.shapes.setdefault(relation.name, relation)


class TestKeepsARelationBeyondItsChange(Planted):
    decoder = KeepsTheFirstShape
    caught_by = "test_recordings_mean_what_is_written"


class AsksForEachRow(PgOutput):
    def __init__(self, context):
        super().__init__(context)
        self.catalogue = context.catalogue

    def feed(self, frames):
        messages = super().feed(frames)
        for message in messages:
            if isinstance(message, Insert | Update | Delete):
                self.catalogue.relation(message.relation.schema, message.relation.table)
        return messages


class TestAsksTheCatalogueForEachRow(Planted):
    decoder = AsksForEachRow
    caught_by = "test_the_catalogue_is_not_asked_for_each_row"


class ExchangesFlags(PgOutput):
    def feed(self, frames):
        messages = super().feed(frames)
        for message in messages:
            if isinstance(message, Truncate):
                flags = message.cascade, message.restart_identity
                message.restart_identity, message.cascade = flags
        return messages


class TestExchangesCascadeAndRestart(Planted):
    decoder = ExchangesFlags
    caught_by = "test_recordings_mean_what_is_written"


class TakesAnyCommit(PgOutput):
    """Takes a COMMIT for that of the transaction at hand without looking."""

    def feed(self, frames):
        return [message for frame in frames for message in self.one(frame)]

    def one(self, frame):
        lsn, payload = frame
        if payload[:1] == b"C" and len(payload) == 26 and self.begun is not None:
            payload = payload[:2] + self.begun.to_bytes(8, "big") + payload[10:]
        messages = super().feed([(lsn, payload)])
        for message in messages:
            if isinstance(message, Begin):
                self.begun = message.commit_lsn
        return messages

    begun = None


class TestTakesTheCommitOfAnother(Planted):
    decoder = TakesAnyCommit
    caught_by = "test_the_commit_of_another_transaction_is_refused"
