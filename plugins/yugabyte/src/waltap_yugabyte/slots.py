"""Replication slots of YugabyteDB.

Source: yugabyte-db, ``repl_gram.y``, ``slotfuncs.c``, ``yb_virtual_wal_client.c``; Debezium's
connector for YugabyteDB, ``PostgresReplicationConnection.java``.
"""

import logging
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from waltap.changes.transactions.position import parse_lsn
from waltap.errors import ConnectionLost, SourceError
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import PostgresSession
from waltap_postgres.lease import lock_number
from waltap_postgres.replication.slot import CreatedSlot, ReplicationSlot, SlotAdmin
from waltap_postgres.waiting import POLL_S
from waltap_yugabyte.errors import SlotRead
from waltap_yugabyte.properties import YugabyteProperties

log = logging.getLogger(__name__)

# First LSN of a new slot's stream; 1 is the snapshot's.
FIRST_LSN = 2
UNSIGNED = 1 << 64
# Answers of releases without ``ysql_enable_pg_export_snapshot``: their slots have a hybrid time
# instead.
NO_EXPORT = re.compile(
    "Exporting snapshot is not yet supported|cannot export or import snapshot when ", re.IGNORECASE
)

COLUMNS_SQL = """
SELECT attname::text FROM pg_attribute
 WHERE attrelid = 'pg_replication_slots'::regclass AND attnum > 0 AND NOT attisdropped
"""
LOCK_SQL = "SELECT pg_try_advisory_lock(%s)"
# How long to wait for a lock before a warning: our last session may still be ending.
QUIET_S = 2.0
READER_SQL = """
SELECT a.pid, a.application_name, coalesce(host(a.client_addr), 'the node''s own machine')
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND (l.classid::int8 << 32) | l.objid::int8 = %s
"""
# Columns that only some releases have.
OWN = ("yb_stream_id", "yb_restart_commit_ht", "yb_lsn_type")


class YugabyteSlots(SlotAdmin):
    """Manage the slots of one database.

    The server cannot name a slot's reader: ``active`` only means a read within minutes, and a
    second reader is not refused. So a reader holds an advisory lock of the slot's name on the
    catalogue's connection.
    """

    properties: YugabyteProperties

    def __init__(self, catalogue: PostgresCatalogue) -> None:
        super().__init__(catalogue)
        self._columns: frozenset[str] | None = None
        self._exports = True  # until a release says that it cannot
        self._ours: set[str] = set()

    def found(self, which: str, parameters: tuple[object, ...]) -> list[ReplicationSlot]:
        if self._columns is None:
            self._columns = frozenset(name for (name,) in self.catalogue.query(COLUMNS_SQL))
        known = self._columns
        own = ", ".join(name if name in known else "NULL" for name in OWN)
        # The name of this column differs between releases.
        expired = next((name for name in sorted(known) if "expired" in name), "NULL")
        rows = self.catalogue.query(
            "SELECT slot_name::text, plugin::text, database::text, restart_lsn::text,"
            f" confirmed_flush_lsn::text, {own}, {expired} FROM pg_replication_slots WHERE {which}",
            parameters,
        )
        return [self._slot(*row) for row in rows]

    def _slot(self, name: str, *row: Any) -> ReplicationSlot:
        plugin, database, restart, confirmed, stream, commit_ht, lsn_type, expired = row
        consistent = self.properties.consistent_snapshot and commit_ht is not None
        return YugabyteSlot(
            name=name,
            plugin=plugin or "",
            database=database or "",
            temporary=False,
            active_pid=None,
            # Without an LSN the slot is at its first one.
            restart_lsn=parse_lsn(restart) if restart else FIRST_LSN,
            confirmed_flush_lsn=parse_lsn(confirmed) if confirmed else FIRST_LSN,
            wal_status="lost" if expired in (True, "t", "true") else "",
            two_phase=False,
            snapshot=str(int(commit_ht or 0) % UNSIGNED) if consistent else None,
            identity=stream or "",
            hybrid=(lsn_type or "").upper() == "HYBRID_TIME",
        )

    def disk(self) -> tuple[int, int] | None:
        return None  # each node has its own

    def xmin(self, name: str) -> int | None:
        return None  # the server reports a dummy

    def create(
        self,
        session: PostgresSession,
        name: str,
        plugin: str,
        *,
        two_phase: bool = False,
        waiting: Callable[[float], None] = lambda _seconds: None,
    ) -> CreatedSlot:
        if not self._take(name):
            raise self._read_by(name)
        try:
            made = super().create(session, name, plugin, two_phase=two_phase, waiting=waiting)
        except SourceError as error:
            if not self._exports or not NO_EXPORT.search(error.problem):
                raise
            # The release cannot export: create the slot without, and do not try again.
            self._exports = False
            made = super().create(session, name, plugin, two_phase=two_phase, waiting=waiting)
        slot = self.read(name)
        snapshot = made.snapshot if self.properties.consistent_snapshot else None
        identity = "" if slot is None else slot.identity
        return msgspec.structs.replace(made, snapshot=snapshot, identity=identity)

    def create_sql(self, name: str, plugin: str, *, two_phase: bool) -> str:
        # Releases that know no other LSN type refuse the word SEQUENCE, so it is never sent.
        kind = " HYBRID_TIME" if self.properties.slot_lsn_type == "HYBRID_TIME" else ""
        exports = " EXPORT_SNAPSHOT" if self._exports else ""
        return f'CREATE_REPLICATION_SLOT "{name}" LOGICAL {plugin}{kind}{exports}'

    def start_sql(self, name: str, lsn: int, options: dict[str, str]) -> str:
        slot = self.read(name)
        if isinstance(slot, YugabyteSlot) and slot.hybrid and lsn > FIRST_LSN:
            # The next commit may have the same time and must not be skipped. So the last
            # transaction is sent again, and the reader drops it.
            lsn -= 1
        ranges = dict(zip(self.properties.slot_names, self.properties.ranges, strict=False))
        if name in ranges:
            options = {**options, "hash_range": ",".join(map(str, ranges[name]))}
        return super().start_sql(name, lsn, options)

    def await_free(
        self,
        name: str,
        pause: Callable[[float], None],
        left_behind: Callable[[ReplicationSlot], bool] = lambda _slot: False,
    ) -> None:
        """Acquire the lock of the slot's name.

        Another process that has it is waited for, like a reader of a PostgreSQL slot. Raises:
        SlotRead; exceptions of ``pause``.
        """
        properties = self.properties
        patience = properties.slot_max_retries * properties.slot_retry_delay_ms / 1000
        begun, reported = time.monotonic(), False
        while not self._take(name):
            waited = time.monotonic() - begun
            if waited >= patience:
                raise self._read_by(name)
            if waited > QUIET_S and not reported:
                reported = True
                error = self._read_by(name)
                extra = {"slot": name, "error_code": error.code}
                log.warning("%s: waiting up to %.0f s", error.problem, patience, extra=extra)
            pause(min(POLL_S, patience - waited))

    def _take(self, name: str) -> bool:
        """Return whether this process may read a slot.

        It may if it has the lock, or if the server has no locks. Raises: SourceError.
        """
        if name in self._ours:
            return True
        try:
            ((locked,),) = self.catalogue.query(LOCK_SQL, (lock_number(f"waltap slot {name}"),))
        except ConnectionLost:
            raise
        except SourceError as error:  # no locks before 2025.1, or by a flag
            log.info(
                "slot %s: the cluster keeps no advisory locks (%s); a second process that reads the slot "
                "is not noticed",
                name,
                error.problem,
            )
            locked = True
        if locked:
            self._ours.add(name)
        return bool(locked)

    def _read_by(self, name: str) -> SourceError:
        try:
            rows = self.catalogue.query(READER_SQL, (lock_number(f"waltap slot {name}"),))
        except SourceError:  # pg_locks shows such locks only in some releases
            rows = []
        pid, application, address = rows[0] if rows else ("PID", "", "another node")
        reader = f"{application or 'a session'} from {address}, server process {pid}"
        problem = f"replication slot {name!r} is read by another process"
        return SlotRead(problem, slot=name, reader=reader, pid=pid)

    def wait_notice(self, name: str) -> Callable[[float], None]:
        return lambda _seconds: None

    def refuse_failover(self) -> None:
        """Do nothing: slots belong to the cluster."""


class YugabyteSlot(ReplicationSlot, frozen=True, kw_only=True):
    """Describe a slot."""

    # The slot's LSNs are commit times.
    hybrid: bool = False
