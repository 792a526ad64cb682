"""The life of a replication slot: what the server says of it, creation with a snapshot, removal."""

import logging
import time
from collections.abc import Callable, Collection

import msgspec
from psycopg import pq

from waltap.errors import SourceError
from waltap.source.connector import SlotStatus
from waltap.source.position import parse_lsn
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import PostgresSession
from waltap_postgres.errors import FailoverUnavailable, PrivilegeMissing, SlotActive
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.stream import start_replication_sql
from waltap_postgres.replication.wal_disk import wal_disk, wal_folder

__all__ = [
    "CreatedSlot",
    "ReplicationSlot",
    "SlotAdmin",
    "SlotNotCreated",
    "failover_refusal",
    "session_role",
]

log = logging.getLogger(__name__)

CREATE_DEADLINE_S = 120.0
FAILOVER_SINCE = 170000
DROP_DEADLINE_S = 5.0
POLL_S = 0.1
SLOT_SILENCE_S = 1.5
"""After so long the server is asked what keeps a new slot waiting."""


class SlotNotCreated(SourceError):
    """Creating the slot took too long: the server waits for transactions that are still open."""

    code = "WT-2108"
    remedy = (
        "A slot can only be created when every transaction that was open has ended. Find it: SELECT "
        "pid, xact_start, query FROM pg_stat_activity WHERE xact_start IS NOT NULL ORDER BY 2; or "
        "look for forgotten prepared transactions in pg_prepared_xacts."
    )


class ReplicationSlot(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ``pg_replication_slots``; LSNs are 0 where the server gives none."""

    name: str
    plugin: str
    database: str
    temporary: bool
    active_pid: int | None
    restart_lsn: int
    confirmed_flush_lsn: int
    wal_status: str
    two_phase: bool
    failover: bool = False
    synchronized: bool = False
    """The server is a standby and copies the slot from its primary: it cannot be used before promotion."""
    snapshot: str | None = None
    """What a reading transaction can begin in to see what the slot's stream comes behind, as long as the
    slot is not confirmed further; None where a slot that is there has no such snapshot."""
    identity: str = ""
    """What tells the slot from others that had its name, "" where the server says nothing of the kind."""
    safe_bytes: int | None = None
    """What may be written before the slot is in danger; None: without end, or it does not say."""
    invalidation: str = ""
    """The server's word for why it gave the slot up (17 and later), "" where it has none."""

    @property
    def invalidated(self) -> bool:
        """Tell whether the server has given up what the slot needs."""
        return self.wal_status == "lost" or bool(self.invalidation) or not self.restart_lsn

    @property
    def reason(self) -> str:
        """Return why it is invalidated. Servers before 16 give slots up for one reason only."""
        return self.invalidation or "wal_removed"

    def status(self, wal_end: int | None, disk: tuple[int, int] | None = None) -> SlotStatus:
        """Return what commands show; ``wal_end``: where the server stands, None where it does not say;
        ``disk``: size and free bytes of the disk that its WAL is on."""
        return SlotStatus(
            name=self.name,
            decoder=self.plugin,
            reader=self.active_pid,
            restart_lsn=self.restart_lsn,
            confirmed_lsn=self.confirmed_flush_lsn,
            server_lsn=wal_end or self.confirmed_flush_lsn,
            wal_status=self.wal_status,
            safe_bytes=self.safe_bytes,
            invalidation=self.reason if self.invalidated else "",
            disk_bytes=None if disk is None else disk[0],
            free_bytes=None if disk is None else disk[1],
        )


class CreatedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """What CREATE_REPLICATION_SLOT answered. ``snapshot`` is what a reading transaction can begin in,
    None where the server gives none. An exported snapshot can be used only until the next command on
    the connection that created the slot."""

    consistent_lsn: int
    snapshot: str | None
    identity: str = ""
    """As `ReplicationSlot.identity`."""


def session_role(*, leased: bool) -> str:
    """Return what a session that reads the slot is for, as its application name tells others."""
    return "leased replication" if leased else "replication"


def failover_refusal(
    properties: PostgresProperties, version_num: int, *, standby: bool
) -> FailoverUnavailable | None:
    """Return why ``slot.failover`` cannot be had, None when it can or is not wanted."""
    if not properties.slot_failover:
        return None
    if version_num < FAILOVER_SINCE:
        why = f"PostgreSQL {version_num // 10000} copies no slots to standbys (17 and later do)"
    elif properties.slot_temporary:
        why = "slot.temporary: no server copies temporary slots"
    elif standby:
        why = "the server is a standby: only a primary's slots are copied"
    else:
        return None
    return FailoverUnavailable(f"slot.failover is asked for, and {why}")


class SlotAdmin:
    """The slots of one database, as PostgreSQL keeps them."""

    def __init__(
        self, catalogue: PostgresCatalogue, properties: PostgresProperties, version_num: int
    ) -> None:
        self.catalogue, self.properties = catalogue, properties
        self.version_num = version_num
        self._xmin: int | None = None
        self._xmin_due = 0.0
        self._wal_folder: str | None = None

    def read(self, name: str) -> ReplicationSlot | None:
        """Return the slot as it stands now, None when there is none. Raises: SourceError."""
        found = self._read("slot_name = %s", (name,))
        return found[0] if found else None

    def all(self) -> list[ReplicationSlot]:
        """Return every logical slot of this database, by name. Raises: SourceError."""
        return self._read("database = current_database() ORDER BY slot_name", ())

    def _read(self, which: str, parameters: tuple[object, ...]) -> list[ReplicationSlot]:
        version_num = self.version_num
        wal_status = "wal_status" if version_num >= 130000 else "NULL"
        two_phase = "two_phase" if version_num >= 140000 else "false"
        # after a promotion a slot stays marked as copied, and is one as any other
        copied = (
            "failover, synced AND pg_is_in_recovery()" if version_num >= 170000 else "false, false"
        )
        safe = "safe_wal_size" if version_num >= 130000 else "NULL"
        reason = "NULL"
        if version_num >= 170000:
            reason = "invalidation_reason"
        elif version_num >= 160000:
            reason = "CASE WHEN conflicting THEN 'conflicting' END"
        rows = self.catalogue.query(
            "SELECT slot_name::text, plugin::text, database::text, temporary, active_pid,"
            f" restart_lsn::text, confirmed_flush_lsn::text, {wal_status}, {two_phase}, {copied},"
            f" {safe}, {reason}"
            f" FROM pg_replication_slots WHERE {which}",
            parameters,
        )
        return [
            ReplicationSlot(
                name=row[0],
                plugin=row[1] or "",
                database=row[2] or "",
                temporary=row[3],
                active_pid=row[4],
                restart_lsn=parse_lsn(row[5]) if row[5] else 0,
                confirmed_flush_lsn=parse_lsn(row[6]) if row[6] else 0,
                wal_status=row[7] or "",
                two_phase=bool(row[8]),
                failover=bool(row[9]),
                synchronized=bool(row[10]),
                safe_bytes=row[11],
                invalidation=row[12] or "",
            )
            for row in rows
        ]

    def disk(self) -> tuple[int, int] | None:
        """Return size and free bytes of the disk that the server's WAL is on, None where that cannot be
        seen from here. Raises: SourceError."""
        if self._wal_folder is None:
            self._wal_folder = wal_folder(self.catalogue, self.properties)
        return wal_disk(self._wal_folder)

    def xmin(self, name: str) -> int | None:
        """Return the slot's ``catalog_xmin`` as it was at most ``xmin.fetch.interval.ms`` ago; None where
        that is 0, and where the slot has none. Raises: SourceError."""
        interval_s = self.properties.xmin_fetch_interval_ms / 1000
        if interval_s and time.monotonic() >= self._xmin_due:
            rows = self.catalogue.query(
                "SELECT catalog_xmin::text::int8 FROM pg_replication_slots WHERE slot_name = %s",
                (name,),
            )
            self._xmin = rows[0][0] if rows else None
            self._xmin_due = time.monotonic() + interval_s
        return self._xmin

    def names(self) -> set[str]:
        """Return the names of all slots of this database. Raises: SourceError."""
        rows = self.catalogue.query(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
        )
        return {name for (name,) in rows}

    def create(
        self,
        session: PostgresSession,
        name: str,
        plugin: str,
        *,
        two_phase: bool = False,
        waiting: Callable[[float], None] = lambda _seconds: None,
    ) -> CreatedSlot:
        """Create the slot on a replication connection, with a snapshot to read tables in.

        ``waiting`` is called about every half second with the seconds since the command; what it raises
        ends the wait. Raises: SlotNotCreated when open transactions keep it from becoming consistent in
        time; SourceError.
        """

        def meanwhile(seconds: float) -> None:
            if seconds > CREATE_DEADLINE_S:
                raise SlotNotCreated(
                    f"slot {name!r} was not created within {CREATE_DEADLINE_S:.0f} s"
                )
            waiting(seconds)

        result = session.result(
            self.create_sql(name, plugin, two_phase=two_phase), meanwhile=meanwhile
        )
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise session.error(result)
        point, snapshot = result.get_value(0, 1) or b"0/0", result.get_value(0, 2)
        return CreatedSlot(
            consistent_lsn=parse_lsn(point.decode()),
            snapshot=snapshot.decode() if snapshot else None,
        )

    def create_sql(self, name: str, plugin: str, *, two_phase: bool) -> str:
        """Return the command that creates a slot. Source: PostgreSQL manual, "Streaming Replication
        Protocol"; its options in parentheses came with 15."""
        kind = "TEMPORARY " if self.properties.slot_temporary else ""
        if self.version_num >= 150000:
            options = ["SNAPSHOT 'export'"]
            if two_phase:
                options.append("TWO_PHASE true")
            if self.properties.slot_failover:
                options.append("FAILOVER true")
            tail = f"({', '.join(options)})"
        else:
            tail = "EXPORT_SNAPSHOT"
        return f'CREATE_REPLICATION_SLOT "{name}" {kind}LOGICAL "{plugin}" {tail}'

    def start_sql(self, name: str, lsn: int, options: dict[str, str]) -> str:
        """Return the command that streams a slot behind ``lsn``, with options of its output plugin."""
        return start_replication_sql(name, lsn, options)

    def refuse_failover(self) -> None:
        """Raises: FailoverUnavailable, where ``slot.failover`` cannot be had; SourceError."""
        if self.properties.slot_failover:
            ((standby,),) = self.catalogue.query("SELECT pg_is_in_recovery()")
            refusal = failover_refusal(self.properties, self.version_num, standby=standby)
            if refusal is not None:
                raise refusal

    def set_failover(self, session: PostgresSession, name: str) -> None:
        """Have a slot that nobody reads copied to standbys from now on. Raises: SourceError."""
        session.execute(f'ALTER_REPLICATION_SLOT "{name}" (FAILOVER true)')

    def drop(self, name: str, ours: Collection[int] = ()) -> bool:
        """Drop the slot; False when there is none. A walsender that has just been left gets a moment to
        let go of it; one of ``ours``, pids, is ended: while it decodes a large transaction, or where the
        network keeps our end from it, it does not see it. Raises: SlotActive, SourceError.
        """
        deadline = time.monotonic() + DROP_DEADLINE_S
        while True:
            try:
                dropped = self.catalogue.query(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                    " WHERE slot_name = %s",
                    (name,),
                )
            except SlotActive:
                if time.monotonic() > deadline:
                    raise
                slot = self.read(name) if ours else None
                if slot is not None and slot.active_pid in ours:
                    self.end_reader(slot)
                time.sleep(0.02)
            else:
                return bool(dropped)

    def left_behind(
        self, slot: ReplicationSlot, sessions: Collection[int], *, leased: bool
    ) -> bool:
        """Tell whether the reader of a slot of ours is what is left of a session that nobody listens to:
        one of ``sessions`` of this run, whose link broke, or, where this process has the pipeline's lease
        (``leased``), one of the process that had it before. Raises: SourceError."""
        if slot.active_pid in sessions or not leased:
            return slot.active_pid in sessions
        rows = self.catalogue.query(
            "SELECT application_name FROM pg_stat_activity WHERE pid = %s", (slot.active_pid,)
        )
        return any(name == f"waltap {session_role(leased=True)}" for (name,) in rows)

    def _end_left_behind(self, slot: ReplicationSlot) -> None:
        """End a reader that nobody listens to; where the role may not, wait for it as for any other."""
        try:
            self.end_reader(slot)
        except PrivilegeMissing as error:
            log.warning(
                "pid %s reads slot %s for nobody, and cannot be ended: %s",
                slot.active_pid,
                slot.name,
                error.problem,
            )
        else:
            log.info(
                "pid %s, which read slot %s for nobody any more, was ended",
                slot.active_pid,
                slot.name,
            )

    def await_free(
        self,
        name: str,
        pause: Callable[[float], None],
        left_behind: Callable[[ReplicationSlot], bool] = lambda _slot: False,
    ) -> None:
        """Wait until nobody reads the slot: our own last walsender may still have to notice its end. One
        of which ``left_behind`` tells that nobody listens to it is ended: the server would find out after
        ``wal_sender_timeout`` only.

        ``slot.max.retries`` times ``slot.retry.delay.ms`` in all, looking more often than that.
        Raises: SlotActive; what ``pause`` raises.
        """
        properties = self.properties
        patience = properties.slot_max_retries * properties.slot_retry_delay_ms / 1000
        deadline, told = time.monotonic() + patience, False
        ended: set[int] = set()
        while True:
            slot = self.read(name)
            if slot is None or slot.active_pid is None:
                return
            if slot.active_pid not in ended and left_behind(slot):
                ended.add(slot.active_pid)
                self._end_left_behind(slot)
            left = deadline - time.monotonic()
            if left <= 0:
                problem = f"replication slot {slot.name!r} is read by pid {slot.active_pid}"
                raise SlotActive(problem, slot=slot.name, pid=slot.active_pid)
            if not told and slot.active_pid not in ended:
                log.warning(
                    "slot %s is read by pid %d: waiting up to %.0f s for it",
                    slot.name,
                    slot.active_pid,
                    patience,
                    extra={"slot": slot.name, "error_code": SlotActive.code},
                )
                told = True
            pause(min(POLL_S, left))

    def end_reader(self, slot: ReplicationSlot) -> None:
        """End the walsender that uses a slot of our own: one that makes it does not see that we are
        gone."""
        if slot.active_pid is not None:
            self.catalogue.query("SELECT pg_terminate_backend(%s)", (slot.active_pid,))

    def wait_notice(self, name: str) -> Callable[[float], None]:
        """Return what to call, again and again, with the seconds for which a slot is being made: it says
        once what the server waits for."""
        told = False

        def notice(seconds: float) -> None:
            nonlocal told
            if told or seconds < SLOT_SILENCE_S:
                return
            told = True
            log.warning(
                "the slot can be made once open transactions have ended: %s",
                "; ".join(self._open_transactions()) or "none that this role can see",
                extra={"slot": name},
            )

        return notice

    def _open_transactions(self) -> list[str]:
        """Return what is known of the transactions that hold up a new slot, the oldest first."""
        rows = self.catalogue.query(
            "SELECT pid, coalesce(usename, '?'), date_trunc('second', xact_start)::text"
            " FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start LIMIT 5"
        )
        prepared = self.catalogue.query(
            "SELECT gid FROM pg_prepared_xacts ORDER BY prepared LIMIT 5"
        )
        waits = [f"pid {pid} of {user} since {since}" for pid, user, since in rows]
        return waits + [f"prepared transaction {gid!r}" for (gid,) in prepared]
