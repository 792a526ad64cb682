"""Decoders with one planted fault each: `DecoderSuite` finds every one.

All are pgoutput, which keeps every promise, with one thing made wrong.
"""

from dataclasses import replace

import msgspec
from tests.conformance.recorded_sessions import CONTEXT, recordings
from tests.harness.planted_faults import Faults, FindsFaults

import waltap_decoders.plugin
from waltap.changes.decode.decoder import DecoderCapabilities
from waltap.changes.decode.message import (
    Begin,
    Commit,
    Delete,
    Insert,
    RelationSeen,
    Truncate,
    Update,
)
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.errors import DecodeError
from waltap_decoders.pgoutput import PgOutput
from waltap_testing.suites.decoder import DecoderRig, DecoderSuite
from waltap_testing.workload import lone_part, transaction_run

FAULTS = Faults()
RECORDINGS = recordings("pgoutput")
GOOD = {spec.name: spec for spec in waltap_decoders.plugin.register_decoders()}["pgoutput"]
ROWS = (Insert, Update, Delete)


@FAULTS.right
class Right(PgOutput):
    """``of`` gives what becomes of each message, ``declares`` what the spec says, ``only`` recordings."""

    declares = GOOD.capabilities
    only: tuple[str, ...] = ()

    def __init__(self, context):
        super().__init__(context)
        self.catalogue, self.kept = context.catalogue, {}

    def feed(self, frames):
        messages = self.one_by_one(super().feed, frames)
        return [message for message in messages if self.of(message)]

    def one_by_one(self, decode, frames):
        return decode(frames)

    def of(self, _message):
        return True


def drops(kind):
    return lambda _self, message: not isinstance(message, kind)


def sets(kinds, **fields):
    """Return an ``of`` by which messages of ``kinds`` get fields, each made of decoder and message."""

    def of(self, message):
        if isinstance(message, kinds):
            for name, value in {n: make(self, message) for n, make in fields.items()}.items():
                setattr(message, name, value)
        return True

    return of


def without(marker, row):
    return tuple(None if value is marker else value for value in row)


def leaks(self, decode, frames):
    try:
        return decode(frames)
    except DecodeError as cause:
        raise IndexError("index out of range") from cause


def swallows(self, decode, frames):
    messages = []
    for frame in frames:
        try:
            messages += decode([frame])
        except DecodeError:
            continue
    return messages


def passes_over(self, decode, frames):
    """Refuse what is damaged, but for frames of a kind that it does not know."""
    return decode([f for f in frames if f[1][:1] in b"BCORYIUDTMSEcAbPKrp" or not f[1]])


def loses_the_last(self, decode, frames):
    """Decode a frame when the next one arrives, and forget the last of a call."""
    messages = decode(frames)
    rows = [message for message in messages if isinstance(message, Insert)]
    return [m for m in messages if len(frames) == 1 or m is not (rows or [None])[-1]]


def believes_lengths(self, decode, frames):
    """Allocate what a length says before it looks whether that much is there."""
    for _, payload in frames:
        if payload[:1] == b"I" and len(payload) > 13:
            bytearray(min(int.from_bytes(payload[9:13]), 1 << 28))
    return decode(frames)


def points_nowhere(self, decode, frames):
    try:
        return decode(frames)
    except DecodeError as cause:
        raise DecodeError(self.name, lsn=0, offset=0, expected="else", found="this") from cause


def takes_any_commit(self, decode, frames):
    """Take a COMMIT for that of the transaction at hand without looking."""
    messages = []
    for lsn, payload in frames:
        begun = self.kept.get("begun")
        if payload[:1] == b"C" and len(payload) == 26 and begun is not None:
            payload = payload[:2] + begun.to_bytes(8, "big") + payload[10:]
        messages += decode([(lsn, payload)])
        self.kept |= {"begun": m.commit_lsn for m in messages if isinstance(m, Begin)}
    return messages


FED = [
    ("test_damaged_frames_give_rows_or_decode_errors", leaks, IndexError),
    ("test_every_truncation_is_refused", swallows),
    ("test_what_no_decoder_knows_is_not_passed_over", passes_over),
    ("test_grouping_of_frames_makes_no_difference", loses_the_last),
    ("test_damaged_frames_give_rows_or_decode_errors", believes_lengths),
    ("test_errors_name_the_place", points_nowhere),
    ("test_the_commit_of_another_transaction_is_refused", takes_any_commit),
]
for promise, fed, *raises in FED:
    FAULTS.plant(fed.__name__, promise, *raises, one_by_one=fed)


def forgets_the_schema(self, message):
    """Keep shapes by the name of the table alone, as long as they have the columns that came."""
    relation = message.relation
    known = self.kept.setdefault(relation.table, relation)
    if known.schema == relation.schema:
        known = self.kept[relation.table] = relation
    return known


def asks_for_each_row(self, message):
    if isinstance(message, ROWS):
        self.catalogue.relation(message.relation.schema, message.relation.table)
    return True


SEEN = (RelationSeen, *ROWS)
MEANING = "test_recordings_mean_what_is_written"
FOLDED = sets(Update, new=lambda _, m: without(UNCHANGED, m.new))
OF = {
    "FoldsUnchangedIntoNull": (MEANING, FOLDED),
    "DeclaresUnchangedAndFoldsIt": ("test_it_does_all_it_declares", FOLDED),
    "FoldsAbsentIntoNull": (
        "test_old_keys_have_no_other_columns",
        sets((Update, Delete), old=lambda _, m: without(ABSENT, m.old)),
    ),
    "MakesANewRelationEveryTime": (
        "test_the_same_shape_is_the_same_object",
        sets(RelationSeen, relation=lambda _, m: msgspec.structs.replace(m.relation)),
    ),
    "KeepsEverything": (
        "test_memory_does_not_grow_with_the_stream",
        lambda self, message: self.kept.setdefault(len(self.kept), [message]),
    ),
    "NeverEnds": ("test_positions_never_go_back", sets(Commit, end_lsn=lambda *_: 0)),
    "DropsCommits": ("test_transactions_are_whole", drops(Commit)),
    "DropsTruncates": ("test_it_does_all_it_declares", drops(Truncate)),
    "LeavesTrailingNullsOut": (
        "test_tuples_are_as_long_as_their_relation",
        sets(Insert, new=lambda _, m: m.new[:-1] if m.new[-1] is None else m.new),
    ),
    "DeclaresTimesAndHasNone": (
        "test_commit_times_are_there_where_declared",
        sets(Commit, commit_ts=lambda *_: 0),
    ),
    "ForgetsTheSchema": (MEANING, sets(SEEN, relation=forgets_the_schema)),
    "KeepsARelationBeyondItsChange": (
        MEANING,
        sets(SEEN, relation=lambda self, m: self.kept.setdefault(m.relation.name, m.relation)),
    ),
    "AsksForEachRow": ("test_the_catalogue_is_not_asked_for_each_row", asks_for_each_row),
    "ExchangesCascadeAndRestart": (
        MEANING,
        sets(
            Truncate,
            cascade=lambda _, m: m.restart_identity,
            restart_identity=lambda _, m: m.cascade,
        ),
    ),
}
for name, (promise, of) in OF.items():
    FAULTS.plant(name, promise, of=of)

FAULTS.plant(
    "ClaimsWhatNoRecordingShows",
    "test_it_does_all_it_declares",
    only=("pgoutput_v1 insert", "pgoutput_v1 truncate"),
)
FAULTS.plant(
    "ClaimsMoreThanItsSpec",
    "test_spec_and_decoder_agree",
    declares=replace(GOOD.capabilities, streaming=False),
)
FAULTS.plant(
    "ForgetsPublications",
    "test_publications_are_asked_for_where_filters_are_declared",
    start_options=lambda self: {**Right.start_options(self), "publication_names": "waltap"},
)
KEPT = "self.catalogue, self.kept = context.catalogue, {}"
FAULTS.edit(Right, ("DoesWhatItDenies", "test_it_does_only_what_it_declares", KEPT, f"{KEPT}\n        self.capabilities = replace(self.capabilities, truncate=False)"))  # fmt: skip


@FAULTS.found_by("test_decoders_share_no_state", DecodeError)
class SharesState(Right):
    """Keeps its cache of relations in the class."""

    def __init__(self, context):
        super().__init__(context)
        SharesState.shared = self

    def feed(self, frames):
        return [m for f in frames for m in super(SharesState, SharesState.shared).feed([f])]


@FAULTS.found_by("test_decoders_share_no_state")
class KeepsRelations(Right):
    """Has the relations of earlier sessions."""

    known = {}  # noqa: RUF012 - that is the fault

    def of(self, message):
        if isinstance(message, ROWS):
            relation = message.relation
            message.relation = self.known.setdefault((relation.oid, relation.columns), relation)
        return True


def in_blocks(self, decode, frames):
    """Give a transaction of one insert as a block, when its commit has come."""
    found, held = [], self.kept.setdefault("held", [])
    for message in decode(frames):
        held += [] if isinstance(message, RelationSeen) else [message]
        if isinstance(message, Commit):
            part = lone_part(held[1], xid=held[0].xid, behind=8)
            part.commit_ts = self.time(message)
            found.append(transaction_run([part]).block)
            held.clear()
    return found


NO_MORE = dict.fromkeys(("old_key", "old_row", "unchanged", "special_numbers"), False)
FAULTS.right(type("InBlocks", (Right,), {
    "one_by_one": in_blocks, "only": ("pgoutput_v1 strings",), "time": lambda _, commit: commit.commit_ts,
    "declares": (only_inserts := DecoderCapabilities(**NO_MORE)), "capabilities": only_inserts,
}))  # fmt: skip
FAULTS.plant("DeclaresMoreThanBlocksShow", "test_it_does_all_it_declares", declares=replace(only_inserts, truncate=True))  # fmt: skip
FAULTS.plant("HasBlocksWithoutTimes", "test_commit_times_are_there_where_declared", time=lambda *_: 0)  # fmt: skip


class TestPlantedDecoders(FindsFaults):
    suite = DecoderSuite
    faults = FAULTS
    kept_elsewhere = frozenset({"test_damaged_frames_give_rows_or_decode_errors"})

    def rig(self, plugin, _folder):
        spec = replace(GOOD, factory=plugin, capabilities=plugin.declares)
        chosen = [r for r in RECORDINGS if not plugin.only or r.name in plugin.only]
        return DecoderRig(spec, chosen, context=CONTEXT)
