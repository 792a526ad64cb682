"""Plan a start from offset, slot, server and snapshot mode.

The plan is complete before the connector creates anything on the server.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from waltap.changes.decode.decoder import ServerInfo
from waltap.changes.transactions.position import lsn_text
from waltap.errors import OffsetError, SourceError
from waltap.ports.offsets.offset import Offset
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap.ports.snapshot.snapshotter import SnapshotFacts, Snapshotter
from waltap.ports.source.connector import ConnectorContext
from waltap_postgres.errors import (
    PositionGap,
    PublicationDropped,
    SlotInvalidated,
    SlotMissing,
    SlotNotOurs,
    SlotSynchronized,
    SlotUnfit,
    SlotUnreadable,
)
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.slot import ReplicationSlot
from waltap_postgres.snapshot.options import decision
from waltap_postgres.start.resume_check import ResumeCheck

log = logging.getLogger(__name__)

# These errors say that WAL is lost while the server's history continued. After any other error
# offset and server have unrelated positions, and only a new snapshot helps.
REPAIRED = (SlotMissing, SlotInvalidated, PositionGap, PublicationDropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupPlan:
    """Describe the steps of a start."""

    snapshot: bool
    stream: bool
    # The slot to read, or to replace when `new_slot`; None: there is none yet.
    slot: ReplicationSlot | None
    # The stored offset, where it is still valid.
    offset: Offset | None
    # The facts by which the snapshot mode decided.
    known: SnapshotFacts
    # Create the slot, also instead of `slot`.
    new_slot: bool = False
    # The reason why streaming cannot continue from the stored offset.
    lost: SourceError | OffsetError | None = None
    # A new snapshot repairs `lost`.
    recovers: bool = False
    # The slot belongs to another pipeline, and this one takes it over with the operator's
    # consent.
    takes_over: bool = False
    # This run began to create the slot, and the connection broke before the answer came, or
    # before the offset was stored.
    begun: bool = False
    # The interrupted snapshot continues.
    resumes: bool = False

    @property
    def exports(self) -> bool:
        """Return whether a new slot is made that exports a snapshot.

        The rows are then read in the exported snapshot.
        """
        return self.stream and not self.resumes and (self.slot is None or self.new_slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupState:
    """Hold all facts that decide a start."""

    # The stored offset.
    offset: Offset | None
    # The server's slot of the profile's name.
    slot: ReplicationSlot | None
    snapshotter: Snapshotter
    # The slot must be of this output plugin and of `database`.
    plugin: str
    database: str
    # The reason why streaming cannot continue from `offset`, by comparing it with the slot
    # (`ResumeCheck`).
    lost: SourceError | OffsetError | None = None
    # The offset belongs to this server, database and slot,
    of_database: bool = False
    # and the run that stored it made the slot.
    made_slot: bool = False
    # This run began to create the slot.
    begun: bool = False
    # An earlier start recorded the slot as its own.
    known: bool = False
    # The operator allows the takeover of another pipeline's slot.
    takes_over: bool = False
    reconnects: bool = False
    # The snapshot of `offset` can continue with this slot.
    resumable: bool = False
    # After a lost position the engine starts without a snapshot, and then reads the tables again.
    repairs: bool = False
    # The reason why this run cannot continue to read the slot.
    unreadable: SourceError | None = None


def decide(situation: StartupState) -> StartupPlan:
    """Decide how a start continues.

    The function is pure: the same situation gives the same plan. Its table, with rows of
    "offset, slot: plan":

    - any, any: where the mode streams nothing, read tables or do not, and end.
    - none, none: a new slot, and a snapshot if the mode wants one.
    - none, ours or taken over by consent: continue from the slot's confirmed position.
    - none, another pipeline's: `SlotNotOurs`.
    - of an unfinished snapshot, at the snapshot's start, and the mode resumes: continue the snapshot.
    - of an unfinished snapshot, made by us: a new slot and a new snapshot.
    - complete, fits without loss: continue from the offset.
    - complete, missing, invalidated or ahead: the error, or a new snapshot where the mode recovers.
    - complete, the same, and the run repairs: continue at a slot as available, without a snapshot.
    - any, of another plugin or database: `SlotUnfit`.
    - any, copied by a standby from its primary: `SlotSynchronized`.

    Raises SourceError, OffsetError or SnapshotError when there is no way to continue.
    """
    slot, offset, snapshotter = situation.slot, situation.offset, situation.snapshotter
    incomplete = offset is not None and offset.snapshot is not None
    # No streamed change of such a slot was stored, so it may be replaced.
    ours = (incomplete and situation.made_slot) or situation.begun
    lost = situation.lost or situation.unreadable
    resumable = situation.resumable and incomplete and slot is not None and lost is None
    known = SnapshotFacts(
        offset=offset is not None,
        snapshot_incomplete=incomplete,
        position_available=lost is None,
        reconnects=situation.reconnects,
    )
    snapshot = decision(snapshotter, "takes_snapshot", known)
    stream = decision(snapshotter, "streams", known)
    # A snapshot alone needs no slot, so a missing or unfit one is no error here.
    if not stream:
        return StartupPlan(snapshot=snapshot, stream=False, slot=slot, offset=offset, known=known)
    takes_over = False
    if slot is not None:
        refusal = unfit(slot, plugin=situation.plugin, database=situation.database)
        if refusal is not None:
            raise refusal
        # An offset of this very slot proves that it is ours.
        tied = offset is not None and situation.of_database
        takes_over = not tied and not situation.begun and _takes_over(slot, situation)
    if isinstance(lost, REPAIRED) and situation.repairs and not incomplete:
        # The engine reads the tables again after the start.
        snapshot = False
    elif lost is not None and not (
        ours or (snapshot and decision(snapshotter, "recovers_lost_position"))
    ):
        raise lost
    resumes = (
        resumable and snapshot and not situation.begun and decision(snapshotter, "resumes", known)
    )
    # An invalidated slot has lost its WAL and cannot be read again.
    new_slot = slot is None or slot.invalidated or ours or situation.unreadable is not None
    return StartupPlan(
        snapshot=snapshot,
        stream=True,
        slot=slot,
        offset=offset,
        new_slot=new_slot and not resumes,
        resumes=resumes,
        lost=lost,
        recovers=lost is not None and snapshot and decision(snapshotter, "recovers_lost_position"),
        takes_over=takes_over,
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
    publication_gone: Callable[[], SourceError | None],
) -> StartupState:
    """Return the facts for `decide`; changes nothing.

    ``publication_gone`` returns the reason why the slot cannot be read, or None. Raises
    SourceError.
    """
    reconnects = context.reconnects
    if properties.slot_temporary and not reconnects and (slot is None or slot.temporary):
        offset = None  # of a run that was killed: its slot is gone with it, as by a clean stop
    name = properties.slot_name
    entry = owned_object(properties, server, "slot", name)
    if offset is not None:
        offset = resumption.present(offset, slot)
    of_database = offset is not None and resumption.belongs_here(offset)
    made_slot = offset is not None and of_database and offset.sole.slot_created_lsn > 0
    begun = slot is not None and offset is None and name in context.made.slots
    ours = (made_slot and offset is not None and offset.snapshot is not None) or begun
    resumable = context.resumes_snapshot and resumption.can_resume(
        offset, slot, restarts=context.restarts_tables
    )
    unreadable: SourceError | None = None
    if slot is not None:
        # Such a slot will be replaced, so its publication does not matter.
        skipped = ours and not resumable
        unreadable = context.made.unreadable.get(name) or (None if skipped else publication_gone())
    return StartupState(
        offset=offset,
        slot=slot,
        snapshotter=context.snapshotter,
        plugin=context.decoder.output_plugin,
        database=properties.dbname,
        lost=resumption.lost(offset, slot),
        of_database=of_database,
        made_slot=made_slot,
        begun=begun,
        known=context.owned_objects.find(*entry.key) is not None,
        takes_over=properties.slot_takeover or context.debezium,
        reconnects=reconnects,
        resumable=resumable,
        repairs=context.repairs,
        unreadable=unreadable,
    )


def take(
    context: ConnectorContext, entry: OwnedObject, decision: StartupPlan, offset: Offset | None
) -> None:
    """Record that the slot ``entry`` is ours, and whether we made it."""
    if decision.takes_over:
        log.warning(
            "slot %s was there before and is taken over; what its reader had not confirmed comes here",
            entry.name,
            extra={"slot": entry.name},
        )
    if context.owned_objects.find(*entry.key) is None:
        # Only a slot that this pipeline made may be dropped with it.
        made = offset is not None and offset.sole.slot_created_lsn > 0 and not decision.takes_over
        context.owned_objects.keep(msgspec.structs.replace(entry, made=made))


def log_loss(decision: StartupPlan, slot: str) -> None:
    """Warn about the changes that a new snapshot cannot bring back."""
    lost, offset = decision.lost, decision.offset
    if lost is not None and decision.recovers:
        log.warning(
            "%s: a new snapshot is taken. Lost are the single changes since %s; what they left in the "
            "tables comes with the snapshot, deletes from the gap are not reported",
            lost.problem,
            lsn_text(offset.sole.position.end_lsn) if offset else "the slot was made",
            extra={"error_code": lost.code, "slot": slot},
        )


def given_up(context: ConnectorContext, slot: str, error: SourceError) -> SourceError:
    """Return the error for a slot that can no longer be read.

    Where a reconnect takes a new snapshot after a lost position, it creates the slot again.
    """
    known = SnapshotFacts(
        offset=True, snapshot_incomplete=False, position_available=False, reconnects=True
    )
    snapshotter = context.snapshotter
    recovers = decision(snapshotter, "recovers_lost_position") and decision(
        snapshotter, "takes_snapshot", known
    )
    if not recovers or not context.retries:
        return error
    # The next connection finds the reason here and plans a new slot.
    context.made.unreadable[slot] = error
    return SlotUnreadable(error.problem, slot=slot)


def owned_object(
    properties: PostgresProperties, server: ServerInfo, kind: str, name: str
) -> OwnedObject:
    """Return the entry of our slot or publication on this server."""
    return OwnedObject(
        kind=kind, name=name, system_id=server.system_id, database=properties.dbname, made=True
    )


def unfit(slot: ReplicationSlot, *, plugin: str, database: str) -> SourceError | None:
    """Return the reason why this profile cannot read the slot, or None."""
    # PostgreSQL refuses to decode from a synchronized slot until the standby is promoted.
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
    """Return whether this start takes over a foreign slot.

    Raises SlotNotOurs where the operator has not allowed it.
    """
    # A temporary slot ends with the connection that made it.
    if slot.temporary or situation.known:
        return False
    if situation.takes_over:
        return True
    reader = "" if slot.active_pid is None else f"; pid {slot.active_pid} reads it now"
    raise SlotNotOurs(
        f"replication slot {slot.name!r} exists, and no offset of this pipeline is stored for it: "
        f"another pipeline made it, or this one's state is elsewhere{reader}",
        slot=slot.name,
    )
