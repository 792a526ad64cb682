"""How a start goes on: decided from offset, slot, server and snapshot mode, before anything is made."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from waltap.decode.decoder import ServerInfo
from waltap.errors import OffsetError, SourceError
from waltap.offsets.belongings import Belonging
from waltap.offsets.offset import Offset
from waltap.snapshot.snapshotter import Known
from waltap.source.connector import ConnectorContext
from waltap.source.position import lsn_text
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.errors import PublicationGone, SlotNotOurs, SlotUnfit, SlotUnreadable
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.slot import Slot
from waltap_postgres.resumption import Resumption

__all__ = ["Decision", "belonging", "decide", "given_up"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a start will do.

    ``slot`` is the slot to go on with, or to replace when ``anew``; None: there is none yet.
    ``lost`` is why streaming cannot go on from the stored offset, which a new snapshot then mends.
    ``adopts``: the slot is another's, and is taken over by consent. ``begun``: this run began to make
    it, and the link broke before the answer came, or before the offset was stored. ``offset`` is the
    stored one where it still counts.
    """

    snapshot: bool
    stream: bool
    slot: Slot | None
    offset: Offset | None
    anew: bool = False
    lost: SourceError | OffsetError | None = None
    adopts: bool = False
    begun: bool = False


def decide(
    catalogue: PostgresCatalogue,
    properties: PostgresProperties,
    context: ConnectorContext,
    server: ServerInfo,
    slot: Slot | None,
    offset: Offset | None,
    *,
    history: Callable[[], str],
    publication_gone: Callable[[], PublicationGone | None],
) -> Decision:
    """Decide; changes nothing. ``history`` gives the timeline history file when it is needed,
    ``publication_gone`` why the slot cannot be read.

    Raises: SourceError, OffsetError, SnapshotError when there is no way to go on.
    """
    if properties.slot_temporary and not context.reconnects and (slot is None or slot.temporary):
        offset = None  # of a run that was killed: its slot is gone with it, as by a clean stop
    incomplete = offset is not None and offset.snapshot is not None
    resumption = Resumption(catalogue, properties, server, history)
    ours = incomplete and offset is not None and resumption.made_by_us(offset)
    begun = slot is not None and offset is None and slot.name in context.made.slots
    ours = ours or begun
    unreadable: SourceError | None = None
    if slot is not None:
        unreadable = context.made.unreadable.get(slot.name) or (
            None if ours else publication_gone()
        )
    lost = resumption.lost(offset, slot) or unreadable
    known = Known(
        offset=offset is not None,
        snapshot_incomplete=incomplete,
        position_available=lost is None,
        reconnects=context.reconnects,
    )
    snapshotter = context.snapshotter
    snapshot, stream = snapshotter.takes_snapshot(known), snapshotter.streams(known)
    if not stream:
        return Decision(snapshot=snapshot, stream=False, slot=slot, offset=offset)
    adopts = False
    if slot is not None:
        _fits(slot, context, properties)
        tied = offset is not None and resumption.belongs_here(offset)
        adopts = not tied and not begun and not _consented(slot, context, properties, server)
    recovers = snapshot and snapshotter.recovers_lost_position()
    if lost is not None and not (recovers or ours):
        raise lost
    if lost is not None and recovers:
        log.warning(
            "%s: a new snapshot is taken. Lost are the single changes since %s; what they left in the "
            "tables comes with the snapshot, rows deleted meanwhile are not told",
            lost.problem,
            lsn_text(offset.position.end_lsn) if offset else "the slot was made",
            extra={"error_code": lost.code, "slot": properties.slot_name},
        )
    return Decision(
        snapshot=snapshot,
        stream=True,
        slot=slot,
        offset=offset,
        anew=slot is None or slot.invalidated or ours or unreadable is not None,
        lost=lost,
        adopts=adopts,
        begun=begun,
    )


def given_up(context: ConnectorContext, slot: str, error: PublicationGone) -> SourceError:
    """Return what the end of a slot that cannot be read on means. Where a reconnect takes a new snapshot
    when the position is lost, it makes the slot anew."""
    known = Known(offset=True, snapshot_incomplete=False, position_available=False, reconnects=True)
    snapshotter = context.snapshotter
    recovers = snapshotter.recovers_lost_position() and snapshotter.takes_snapshot(known)
    if not recovers or not context.retries:
        return error
    context.made.unreadable[slot] = error
    return SlotUnreadable(error.problem, slot=slot)


def belonging(
    properties: PostgresProperties, server: ServerInfo, kind: str, name: str
) -> Belonging:
    """Return the entry of a slot or publication of ours on this server."""
    return Belonging(
        kind=kind, name=name, system_id=server.system_id, database=properties.dbname, made=True
    )


def _fits(slot: Slot, context: ConnectorContext, properties: PostgresProperties) -> None:
    plugin = context.decoder.output_plugin
    if slot.plugin != plugin or slot.database != properties.dbname:
        raise SlotUnfit(
            f"slot {slot.name!r} belongs to database {slot.database!r} and plugin "
            f"{slot.plugin!r}; wanted are {properties.dbname!r} and {plugin!r}",
            slot=slot.name,
        )


def _consented(
    slot: Slot, context: ConnectorContext, properties: PostgresProperties, server: ServerInfo
) -> bool:
    """Tell whether an earlier start had the slot already; False: this one takes it over by consent.

    A temporary slot goes with the connection that made it. Raises: SlotNotOurs without consent.
    """
    known = belonging(properties, server, "slot", slot.name)
    if slot.temporary or context.belongings.find(*known.place) is not None:
        return True
    if properties.slot_adopt or context.debezium:
        return False
    raise SlotNotOurs(
        f"replication slot {slot.name!r} exists, and no offset of this pipeline is stored for it: "
        "another pipeline made it, or this one's state is elsewhere",
        slot=slot.name,
    )
