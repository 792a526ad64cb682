"""Check whether streaming can resume at the stored offset without a gap."""

from collections.abc import Callable

import msgspec

from waltap.base.text import size
from waltap.changes.decode.decoder import ServerInfo
from waltap.changes.transactions.position import lsn_text, parse_lsn
from waltap.errors import OffsetError, SourceError
from waltap.ports.offsets.offset import Offset
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.errors import (
    OtherServer,
    OtherSlot,
    PositionAhead,
    PositionGap,
    ServerRestored,
    SlotInvalidated,
    SlotMissing,
)
from waltap_postgres.replication.slot import ReplicationSlot
from waltap_postgres.snapshot.resumed import long_values

BELIEVES_SLOT = frozenset({"trust_slot", "trust_greater_lsn"})


class ResumeCheck:
    """Compare offset, slot and server.

    ``history`` returns a timeline's history file; it is called only after a change of timeline.
    """

    def __init__(
        self, catalogue: PostgresCatalogue, server: ServerInfo, history: Callable[[int], str]
    ) -> None:
        properties = catalogue.properties
        self._catalogue, self._properties = catalogue, properties
        self._server, self._history = server, history
        self._here = (server.system_id, properties.dbname, properties.slot_name)

    def present(self, offset: Offset, slot: ReplicationSlot | None) -> Offset:
        """Return the offset with the present name of a renamed database.

        Raises: SourceError.
        """
        # A slot made later than the offset is behind a gap.
        (system_id, database, name), then = self._here, offset.sole
        ours = (then.system_id, then.slot) == (system_id, name)
        renamed = ours and self.was_named(then.database, slot)
        return offset.with_sole(database=database) if renamed else offset

    def was_named(self, database: str, slot: ReplicationSlot | None) -> bool:
        """Return whether ``database`` is the former name of this one.

        ``slot`` was made in it, and a slot's name is of the whole server. Raises: SourceError.
        """
        here = slot is not None and slot.database == self._properties.dbname != database
        found = "SELECT FROM pg_database WHERE datname = %s"
        return here and not self._catalogue.query(found, (database,))

    def belongs_here(self, offset: Offset) -> bool:
        """Return whether the offset is of this server, database and slot."""
        return _belongs_to(offset) == self._here

    def can_resume(
        self, offset: Offset | None, slot: ReplicationSlot | None, *, restarts: bool
    ) -> bool:
        """Return whether the snapshot of ``offset`` can continue.

        A part of it was kept, and the slot still has every later change. ``restarts``: tables that
        cannot continue may start again. Raises: SourceError.
        """
        if offset is None or slot is None or offset.snapshot is None or not offset.snapshot.tables:
            return False
        # A standby does not know which transactions were in progress at the basis.
        return not self._catalogue.standby() and (
            self.belongs_here(offset)
            and offset.sole.timeline == self._server.timeline
            and not (slot.temporary or slot.invalidated)
            and slot.confirmed_flush_lsn <= offset.sole.position.end_lsn
            and (restarts or not long_values(self._catalogue, offset.snapshot.tables))
        )

    def lost(
        self, offset: Offset | None, slot: ReplicationSlot | None
    ) -> SourceError | OffsetError | None:
        """Return why streaming cannot resume, None if it can."""
        # An offset without a complete snapshot is no position, so only the slot decides.
        if offset is not None and offset.snapshot is not None:
            offset = None
        if offset is not None and not self.belongs_here(offset):
            if _belongs_to(offset)[:2] == self._here[:2]:
                return OtherSlot(
                    f"the stored offset belongs to slot {offset.sole.slot!r}; the profile names slot "
                    f"{self._properties.slot_name!r}",
                    stored=offset.sole.slot,
                )
            return OtherServer(
                "the stored offset belongs to system {}, database {!r}, slot {!r}; this is system {},"
                " database {!r}, slot {!r}".format(*_belongs_to(offset), *self._here)
            )
        if offset is not None:
            earlier = self._earlier(offset)
            # Checked before the slot, because a copy of a server has no slots.
            if earlier is not None:
                return earlier
        if slot is None:
            return None if offset is None else self._missing(offset)
        if slot.invalidated:
            return SlotInvalidated(
                f"replication slot {slot.name!r} was invalidated: {slot.reason}",
                slot=slot.name,
                reason=slot.reason,
            )
        identity = "" if offset is None else offset.sole.slot_identity
        if identity and slot.identity not in {"", identity}:
            return PositionGap(
                f"slot {slot.name!r} was dropped and created again since the offset was stored: its "
                "positions start again"
            )
        if offset is None:
            return None
        moved = self.moved(offset.sole.position.end_lsn, slot)
        if moved is not None and not offset.sole.position.end_lsn:
            moved = self._missing(offset)
        return self._older(offset, slot) or moved

    def _missing(self, offset: Offset) -> OffsetError:
        if not offset.sole.position.end_lsn:
            problem = "the last run took a snapshot alone, without a replication slot"
            return SlotMissing(problem, position="that snapshot")
        position = lsn_text(offset.sole.position.end_lsn)
        why = ": it was temporary, and ended with its connection"
        return SlotMissing(
            f"replication slot {offset.sole.slot!r} no longer exists, but an offset at {position} "
            f"is stored{why if self._properties.slot_temporary else ''}",
            position=position,
        )

    def _earlier(self, offset: Offset) -> OffsetError | None:
        """Return the error for a server that never had the offset's WAL.

        Such a server was restored from a copy.
        """
        end_lsn, wal_end = offset.sole.position.end_lsn, self._catalogue.wal_end()
        if offset.sole.timeline > self._server.timeline:
            return OtherServer(
                f"the stored offset is of timeline {offset.sole.timeline}, the server is on timeline "
                f"{self._server.timeline}: it has not been where the offset comes from"
            )
        if offset.sole.timeline != self._server.timeline:
            parted = self._parted_from(offset.sole.timeline)
            if parted is None or parted < end_lsn:
                where = f"at {lsn_text(parted)}" if parted else "before that"
                return OtherServer(
                    f"the stored offset is at {lsn_text(end_lsn)} of timeline {offset.sole.timeline}; the "
                    f"server is on timeline {self._server.timeline}, which left it {where}"
                )
        # A standby that was killed replays again what it had replayed; its primary has the WAL.
        if wal_end is not None and end_lsn > wal_end and not self._catalogue.standby():
            return PositionAhead(
                f"the stored offset {lsn_text(end_lsn)} lies {size(end_lsn - wal_end)} after the end "
                f"of the server's WAL {lsn_text(wal_end)}"
            )
        return None

    def _older(self, offset: Offset, slot: ReplicationSlot) -> OffsetError | None:
        """Return the error for a slot that went back: its server was restored from a copy.

        The WAL may have passed the offset since, with other changes than those delivered.
        """
        known = offset.sole.slot_restart_lsn
        # A standby's copy of a slot lags, and begins a timeline.
        promoted = offset.sole.timeline != self._server.timeline
        if known is msgspec.UNSET or slot.restart_lsn >= known or promoted:
            return None
        if self._properties.offset_mismatch_strategy != "no_validation":
            return None
        return ServerRestored(
            f"slot {slot.name!r} went back from {lsn_text(known)} to {lsn_text(slot.restart_lsn)}, the "
            f"stored offset is {lsn_text(offset.sole.position.end_lsn)}: the server was restored from "
            "an older copy, and may have other changes before the offset than those delivered"
        )

    def moved(self, end_lsn: int, slot: ReplicationSlot) -> OffsetError | None:
        """Return the error for a slot that was confirmed further than ``end_lsn``."""
        gap = slot.confirmed_flush_lsn - end_lsn
        if gap <= 0 or self._properties.offset_mismatch_strategy in BELIEVES_SLOT:
            return None
        return PositionGap(
            f"slot {slot.name!r} is at {lsn_text(slot.confirmed_flush_lsn)}, {size(gap)} of WAL "
            f"after the stored offset {lsn_text(end_lsn)}: it was dropped and created again, or moved"
        )

    def _parted_from(self, timeline: int) -> int | None:
        """Return the LSN at which the server left ``timeline``.

        None means that it was never on it.
        """
        # A line of the file has the timeline, the LSN at which the next one began, and a reason.
        for line in self._history(self._server.timeline).splitlines():
            words = line.split()
            if len(words) > 1 and words[0] == str(timeline):
                return parse_lsn(words[1])
        return None


def _belongs_to(offset: Offset) -> tuple[str, str, str]:
    return offset.sole.system_id, offset.sole.database, offset.sole.slot
