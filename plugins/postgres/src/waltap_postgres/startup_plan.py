"""How a start goes on: decided from offset, slot, server and snapshot mode, before anything is made."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from waltap.decode.decoder import ServerInfo
from waltap.errors import OffsetError, SourceError
from waltap.offsets.offset import Offset
from waltap.offsets.owned_objects import OwnedObject
from waltap.snapshot.snapshotter import SnapshotFacts, SnapshotStart, Snapshotter
from waltap.source.connector import ConnectorContext, SlotStatus
from waltap.source.position import lsn_text
from waltap_postgres.errors import (
    PositionGap,
    PublicationDropped,
    PublicationGone,
    SlotInvalidated,
    SlotMissing,
    SlotNotOurs,
    SlotSynchronized,
    SlotUnfit,
    SlotUnreadable,
)
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.slot import ReplicationSlot
from waltap_postgres.resume_check import ResumeCheck

__all__ = [
    "StartupPlan",
    "StartupState",
    "belonging",
    "decide",
    "given_up",
    "situation",
    "take",
    "tell_loss",
    "unfit",
]

log = logging.getLogger(__name__)

REPAIRED = (SlotMissing, SlotInvalidated, PositionGap, PublicationDropped)
"""What tells that WAL is gone while the server's history went on; else positions of the two mean nothing
to each other, and only a new snapshot helps."""

Query = Callable[..., list[tuple[object, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupPlan:
    """What a start will do.

    ``slot`` is the slot to go on with, or to replace when ``anew``; None: there is none yet.
    ``lost`` is why streaming cannot go on from the stored offset; ``recovers``: a new snapshot fixes it.
    ``adopts``: the slot is another's, and is taken over by consent. ``begun``: this run began to make
    it, and the link broke before the answer came, or before the offset was stored. ``resumes``: the
    snapshot that has begun goes on. ``offset`` is the stored one where it still counts. ``known`` is what
    the snapshot mode decided by.
    """

    snapshot: bool
    stream: bool
    slot: ReplicationSlot | None
    offset: Offset | None
    known: SnapshotFacts
    anew: bool = False
    lost: SourceError | OffsetError | None = None
    recovers: bool = False
    adopts: bool = False
    begun: bool = False
    resumes: bool = False

    @property
    def exports(self) -> bool:
        """Tell whether a new slot is made, whose exported snapshot rows are read in."""
        return self.stream and not self.resumes and (self.slot is None or self.anew)

    def start_of_snapshot(
        self, offset: Offset | None, slot: SlotStatus | None, query: Query
    ) -> SnapshotStart:
        """Return what a snapshot mode is told of this start; ``offset`` is the stored one."""
        return SnapshotStart(
            known=self.known,
            offset=offset,
            slot=slot,
            exported=self.exports,
            resumes=self.resumes,
            query=query,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupState:
    """All that a start is decided by.

    ``offset`` is the stored one. ``slot`` is what there is by the profile's name, ``plugin`` and
    ``database`` what it has to have. ``lost`` is why streaming cannot go on from ``offset``, by what the
    two say (`ResumeCheck`). ``of_database``: the offset is one of this server, database and slot;
    ``made_slot``: and its run made the slot. ``begun``: this run began to make the slot. ``known``: an
    earlier start had it. ``resumable``: the snapshot of ``offset`` can go on beside it. ``adopts``: a
    slot of somebody else may be taken over. ``repairs``: a lost position is made good by reading tables
    anew, behind a start without a snapshot. ``unreadable``: why this run cannot read the slot on.
    """

    offset: Offset | None
    slot: ReplicationSlot | None
    snapshotter: Snapshotter
    plugin: str
    database: str
    lost: SourceError | OffsetError | None = None
    of_database: bool = False
    made_slot: bool = False
    begun: bool = False
    known: bool = False
    adopts: bool = False
    reconnects: bool = False
    resumable: bool = False
    repairs: bool = False
    unreadable: SourceError | None = None


def decide(situation: StartupState) -> StartupPlan:
    """Decide how a start goes on. Pure: the same situation, the same decision.

    | offset | slot | decision |
    |---|---|---|
    | any | any | where the mode streams nothing: read tables, or not, and end |
    | none | none | a new slot, and what the mode says of a snapshot |
    | none | ours, or taken over by consent | go on from what the slot has confirmed |
    | none | somebody else's | `SlotNotOurs` |
    | of an unfinished snapshot | stands where it began, and the mode goes on | go on with the snapshot |
    | of an unfinished snapshot | made by us | a new slot and a new snapshot |
    | whole | fits, nothing is lost | go on from the offset |
    | whole | missing, invalidated, ahead | the error, or a new snapshot where the mode recovers |
    | whole | the same, and the run repairs | go on at a slot as it can be had, without a snapshot |
    | any | of another plugin or database | `SlotUnfit` |
    | any | copied by a standby from its primary | `SlotSynchronized` |

    Raises: SourceError, OffsetError, SnapshotError when there is no way to go on.
    """
    slot, offset, snapshotter = situation.slot, situation.offset, situation.snapshotter
    incomplete = offset is not None and offset.snapshot is not None
    ours = (incomplete and situation.made_slot) or situation.begun
    lost = situation.lost or situation.unreadable
    resumable = situation.resumable and incomplete and slot is not None and lost is None
    known = SnapshotFacts(
        offset=offset is not None,
        snapshot_incomplete=incomplete,
        position_available=lost is None,
        reconnects=situation.reconnects,
    )
    snapshot, stream = snapshotter.takes_snapshot(known), snapshotter.streams(known)
    if not stream:
        return StartupPlan(snapshot=snapshot, stream=False, slot=slot, offset=offset, known=known)
    adopts = False
    if slot is not None:
        refusal = unfit(slot, plugin=situation.plugin, database=situation.database)
        if refusal is not None:
            raise refusal
        tied = offset is not None and situation.of_database
        adopts = not tied and not situation.begun and _takes_over(slot, situation)
    if isinstance(lost, REPAIRED) and situation.repairs and not incomplete:
        snapshot = False
    elif lost is not None and not (ours or (snapshot and snapshotter.recovers_lost_position())):
        raise lost
    resumes = resumable and snapshot and not situation.begun and snapshotter.resumes(known)
    anew = slot is None or slot.invalidated or ours or situation.unreadable is not None
    return StartupPlan(
        snapshot=snapshot,
        stream=True,
        slot=slot,
        offset=offset,
        anew=anew and not resumes,
        resumes=resumes,
        lost=lost,
        recovers=lost is not None and snapshot and snapshotter.recovers_lost_position(),
        adopts=adopts,
        begun=situation.begun,
        known=known,
    )


def situation(
    properties: PostgresProperties,
    context: ConnectorContext,
    server: ServerInfo,
    slot: ReplicationSlot | None,
    offset: Offset | None,
    resumption: ResumeCheck,
    *,
    publication_gone: Callable[[], PublicationGone | None],
) -> StartupState:
    """Return what `decide` asks for; changes nothing. ``publication_gone`` gives why the slot cannot be
    read. Raises: SourceError."""
    reconnects = context.reconnects
    if properties.slot_temporary and not reconnects and (slot is None or slot.temporary):
        offset = None  # of a run that was killed: its slot is gone with it, as by a clean stop
    name = properties.slot_name
    entry = belonging(properties, server, "slot", name)
    made_slot = offset is not None and resumption.made_by_us(offset)
    begun = slot is not None and offset is None and name in context.made.slots
    ours = (made_slot and offset is not None and offset.snapshot is not None) or begun
    resumable = context.resumes_snapshot and resumption.goes_on(
        offset, slot, restarts=context.restarts_tables
    )
    unreadable: SourceError | None = None
    if slot is not None:
        skipped = ours and not resumable
        unreadable = context.made.unreadable.get(name) or (None if skipped else publication_gone())
    return StartupState(
        offset=offset,
        slot=slot,
        snapshotter=context.snapshotter,
        plugin=context.decoder.output_plugin,
        database=properties.dbname,
        lost=resumption.lost(offset, slot),
        of_database=offset is not None and resumption.belongs_here(offset),
        made_slot=made_slot,
        begun=begun,
        known=context.belongings.find(*entry.place) is not None,
        adopts=properties.slot_adopt or context.debezium,
        reconnects=reconnects,
        resumable=resumable,
        repairs=context.repairs,
        unreadable=unreadable,
    )


def take(
    context: ConnectorContext, entry: OwnedObject, decision: StartupPlan, offset: Offset | None
) -> None:
    """Keep in mind that a slot, ``entry``, is ours from now on, and who made it."""
    if decision.adopts:
        log.warning(
            "slot %s was there before and is taken over; what its reader had not confirmed comes here",
            entry.name,
            extra={"slot": entry.name},
        )
    if context.belongings.find(*entry.place) is None:
        made = offset is not None and offset.sole.slot_created_lsn > 0 and not decision.adopts
        context.belongings.keep(msgspec.structs.replace(entry, made=made))


def tell_loss(decision: StartupPlan, slot: str) -> None:
    """Say what a new snapshot cannot bring back."""
    lost, offset = decision.lost, decision.offset
    if lost is not None and decision.recovers:
        log.warning(
            "%s: a new snapshot is taken. Lost are the single changes since %s; what they left in the "
            "tables comes with the snapshot, rows deleted meanwhile are not told",
            lost.problem,
            lsn_text(offset.sole.position.end_lsn) if offset else "the slot was made",
            extra={"error_code": lost.code, "slot": slot},
        )


def given_up(context: ConnectorContext, slot: str, error: PublicationGone) -> SourceError:
    """Return what the end of a slot that cannot be read on means. Where a reconnect takes a new snapshot
    when the position is lost, it makes the slot anew."""
    known = SnapshotFacts(
        offset=True, snapshot_incomplete=False, position_available=False, reconnects=True
    )
    snapshotter = context.snapshotter
    recovers = snapshotter.recovers_lost_position() and snapshotter.takes_snapshot(known)
    if not recovers or not context.retries:
        return error
    context.made.unreadable[slot] = error
    return SlotUnreadable(error.problem, slot=slot)


def belonging(
    properties: PostgresProperties, server: ServerInfo, kind: str, name: str
) -> OwnedObject:
    """Return the entry of a slot or publication of ours on this server."""
    return OwnedObject(
        kind=kind, name=name, system_id=server.system_id, database=properties.dbname, made=True
    )


def unfit(slot: ReplicationSlot, *, plugin: str, database: str) -> SourceError | None:
    """Return why a slot of our name cannot be read by this profile, None when it can."""
    if slot.synchronized:
        return SlotSynchronized(
            f"the server is a standby, and copies slot {slot.name!r} from its primary"
        )
    if slot.plugin != plugin or slot.database != database:
        return SlotUnfit(
            f"slot {slot.name!r} belongs to database {slot.database!r} and plugin "
            f"{slot.plugin!r}; wanted are {database!r} and {plugin!r}",
            slot=slot.name,
        )
    return None


def _takes_over(slot: ReplicationSlot, situation: StartupState) -> bool:
    """Tell whether this start takes a slot over that no earlier one had. A temporary slot goes with the
    connection that made it. Raises: SlotNotOurs where taking over is not allowed.
    """
    if slot.temporary or situation.known:
        return False
    if situation.adopts:
        return True
    raise SlotNotOurs(
        f"replication slot {slot.name!r} exists, and no offset of this pipeline is stored for it: "
        "another pipeline made it, or this one's state is elsewhere",
        slot=slot.name,
    )
