"""Slot monitoring that does not wait for the engine."""

from waltap.errors import ConnectionLost, SourceError
from waltap.source.slot_status import SlotStatus
from waltap.source.slot_watch import SlotWatch, SlotWatchContext
from waltap_postgres.connection import connect, watch
from waltap_postgres.dialect import POSTGRESQL
from waltap_postgres.properties import PostgresProperties

__all__ = ["PostgresSlotWatch"]

# pg_log_standby_snapshot came with this version.
LOGS_SNAPSHOTS_SINCE = 160000


class PostgresSlotWatch(SlotWatch):
    """Watch the slot of one profile over a separate connection."""

    def __init__(self, properties: PostgresProperties, context: SlotWatchContext) -> None:
        """Open the connection.

        Raises: SourceError, StopRequested.
        """
        properties = properties.with_password(context.password)
        self._name = properties.slot_name
        self._connection = connect(
            properties, role="slot guardian", watch=watch(properties, context.stopping)
        )
        self._version = self._connection.info.server_version
        self._catalogue = POSTGRESQL.catalogue(self._connection, properties)
        self._slots = POSTGRESQL.slots(self._catalogue, properties, self._version)

    def look(self) -> SlotStatus | None:
        slot = self._slots.read(self._name)
        if slot is None:
            return None
        return slot.status(self._catalogue.wal_end(), self._slots.disk())

    def hasten(self) -> str:
        # A slot releases WAL only at a record of running transactions after the confirmed position.
        # A checkpoint writes such a record too, and removes WAL that no slot needs.
        newer = self._version >= LOGS_SNAPSHOTS_SINCE
        try:
            self._catalogue.query(
                "SELECT pg_log_standby_snapshot()"
            ) if newer else self._catalogue.query("CHECKPOINT")
        except ConnectionLost:
            raise
        except SourceError as error:
            return error.problem
        return ""

    def drop(self) -> int:
        slot = self._slots.read(self._name)
        if slot is not None:
            self._slots.end_reader(slot)
            self._slots.drop(self._name)
        return self._catalogue.wal_end() or 0

    def close(self) -> None:
        self._connection.close()
