"""Read, create, free and drop replication slots."""

import logging
import os
import time
from collections.abc import Callable, Collection
from ipaddress import ip_address
from pathlib import Path

import msgspec
from psycopg import pq

from waltap.changes.transactions.position import lsn_text, parse_lsn
from waltap.errors import ConnectionLost, SourceError
from waltap.ports.source.slot_status import SlotStatus, SlotWatch, SlotWatchContext
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import PostgresSession, connect, watch
from waltap_postgres.errors import FailoverUnavailable, PrivilegeMissing, SlotActive
from waltap_postgres.properties import PostgresProperties

log = logging.getLogger(__name__)


def wal_folder(catalogue: PostgresCatalogue) -> str:
    """Return the server's WAL folder, or "". Raises: SourceError."""
    # A path on another machine would be read as a path of this one.
    if not all(_here(host.strip()) for host in catalogue.properties.hostname.split(",")):
        return ""
    # pg_settings hides data_directory from roles without pg_read_all_settings.
    rows = catalogue.query("SELECT setting FROM pg_settings WHERE name = 'data_directory'")
    return str(Path(rows[0][0]) / "pg_wal") if rows else ""


def wal_disk(folder: str) -> tuple[int, int] | None:
    """Return size and free bytes of the disk with ``folder``."""
    if not folder:
        return None
    # The server's user may have closed the folder to other users; then try the folders above it.
    for path in (folder, str(Path(folder).parent), str(Path(folder).parent.parent)):
        try:
            found = os.statvfs(path)
        except PermissionError:
            continue
        except OSError:
            return None  # for example, the server runs in a container
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return None


def _here(host: str) -> bool:
    if host in {"", "localhost"} or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


CREATE_DEADLINE_S = 120.0
# Slots that the server copies to standbys came with this version.
FAILOVER_SINCE = 170000
# A walsender that waltap has just left gets this long to release its slot.
DROP_DEADLINE_S = 5.0
POLL_S = 0.1
# After so long waltap asks the server which transactions hold up a new slot.
SLOT_SILENCE_S = 1.5


SlotNotCreated = SourceError.define("SlotNotCreated", "WT-2108")


class ReplicationSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Hold a row of ``pg_replication_slots``; a missing LSN is 0."""

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
    # A standby copies the slot from its primary; no client can use it before promotion.
    synchronized: bool = False
    # Snapshot of the rows that the slot's stream follows, valid until the slot is confirmed
    # further; None if an existing slot has no such snapshot.
    snapshot: str | None = None
    # Distinguishes the slot from earlier ones of its name, "" if the server has no such id.
    identity: str = ""
    # WAL bytes that can be written before the slot is in danger; None if unlimited or unknown.
    safe_bytes: int | None = None
    # The server's reason for the invalidation, "" if it gives none.
    invalidation: str = ""

    @property
    def invalidated(self) -> bool:
        """Return whether the server no longer has the slot's WAL or rows."""
        return self.wal_status == "lost" or bool(self.invalidation) or not self.restart_lsn

    @property
    def reason(self) -> str:
        # Servers before 16 invalidate slots for one reason only.
        return self.invalidation or "wal_removed"

    def status(self, wal_end: int | None, disk: tuple[int, int] | None = None) -> SlotStatus:
        """Return the slot's status for commands.

        ``wal_end`` is the end of the server's WAL, None if unknown; ``disk`` is the size and the
        free bytes of the disk with that WAL.
        """
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


# The fields of `ReplicationSlot`. ``to_jsonb`` reads columns that older servers do not have. After a
# promotion ``synced`` stays true, although the slot is then as usable as others.
SLOTS_SQL = """
SELECT slot_name::text, coalesce(plugin::text, ''), coalesce(database::text, ''), temporary, active_pid,
       coalesce(restart_lsn - '0/0'::pg_lsn, 0)::int8,
       coalesce(confirmed_flush_lsn - '0/0'::pg_lsn, 0)::int8, coalesce(r ->> 'wal_status', ''),
       coalesce((r ->> 'two_phase')::bool, false), coalesce((r ->> 'failover')::bool, false),
       coalesce((r ->> 'synced')::bool AND pg_is_in_recovery(), false), NULL, '',
       (r ->> 'safe_wal_size')::int8, coalesce(r ->> 'invalidation_reason',
         CASE WHEN (r ->> 'conflicting')::bool THEN 'conflicting' END, '')
  FROM pg_replication_slots s CROSS JOIN to_jsonb(s) r
"""


class CreatedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the answer to CREATE_REPLICATION_SLOT."""

    consistent_lsn: int
    # Snapshot for reading transactions, None if the server exports none. It ends with the next
    # command on the connection that created the slot.
    snapshot: str | None
    # As `ReplicationSlot.identity`.
    identity: str = ""


# `SlotAdmin.left_behind` of a later process recognises the session by this name.
def session_role(*, leased: bool) -> str:
    """Return the role in the application name of a slot's reader."""
    return "leased replication" if leased else "replication"


def slot_in_use(catalogue: PostgresCatalogue, slot: ReplicationSlot) -> SourceError:
    """Return the error that names a busy slot's process.

    Raises: SourceError.
    """
    rows = catalogue.query(
        "SELECT application_name, host(client_addr) FROM pg_stat_activity WHERE pid = %s",
        (slot.active_pid,),
    )
    # The address of another role's session is only for members of pg_read_all_stats.
    who = [f"{name or 'a session'}" + (f" from {at}" if at else "") for name, at in rows]
    known = f" ({who[0]})" if who else ""
    problem = f"replication slot {slot.name!r} is read by pid {slot.active_pid}{known}"
    return SlotActive(problem, slot=slot.name, pid=slot.active_pid)


def failover_refusal(catalogue: PostgresCatalogue, *, standby: bool) -> SourceError | None:
    """Return why ``slot.failover`` is unavailable.

    None means that it is available or not wanted.
    """
    if not catalogue.properties.slot_failover:
        return None
    if catalogue.version_num < FAILOVER_SINCE:
        major = catalogue.version_num // 10000
        why = f"PostgreSQL {major} copies no slots to standbys (17 and later do)"
    elif catalogue.properties.slot_temporary:
        why = "slot.temporary: no server copies temporary slots"
    elif standby:
        why = "the server is a standby: only a primary's slots are copied"
    else:
        return None
    return FailoverUnavailable(f"slot.failover is asked for, and {why}")


class SlotAdmin:
    """Manage the slots of one PostgreSQL database."""

    def __init__(self, catalogue: PostgresCatalogue) -> None:
        self.catalogue, self.properties = catalogue, catalogue.properties
        self._xmin: int | None = None
        self._xmin_due = 0.0
        self._wal_folder: str | None = None

    def read(self, name: str) -> ReplicationSlot | None:
        """Return the slot, None if it does not exist. Raises: SourceError."""
        found = self.found("slot_name = %s", (name,))
        return found[0] if found else None

    def all(self) -> list[ReplicationSlot]:
        """Return every logical slot of this database, by name. Raises: SourceError."""
        return self.found("database = current_database() ORDER BY slot_name", ())

    def found(self, which: str, parameters: tuple[object, ...]) -> list[ReplicationSlot]:
        """Return the slots of which the condition ``which`` is true. Raises: SourceError."""
        rows = self.catalogue.query(f"{SLOTS_SQL} WHERE {which}", parameters)
        fields = ReplicationSlot.__struct_fields__
        return [ReplicationSlot(**dict(zip(fields, row, strict=True))) for row in rows]

    def disk(self) -> tuple[int, int] | None:
        """Return size and free bytes of the disk with the server's WAL.

        None means that this machine cannot see the disk. Raises: SourceError.
        """
        if self._wal_folder is None:
            self._wal_folder = wal_folder(self.catalogue)
        return wal_disk(self._wal_folder)

    def xmin(self, name: str) -> int | None:
        """Return the slot's ``catalog_xmin``, None if it has none.

        The value is at most ``xmin.fetch.interval.ms`` old. Raises: SourceError.
        """
        interval_s = self.properties.xmin_fetch_interval_ms / 1000
        if time.monotonic() >= self._xmin_due:
            rows = self.catalogue.query(
                "SELECT catalog_xmin::text::int8 FROM pg_replication_slots WHERE slot_name = %s",
                (name,),
            )
            self._xmin = rows[0][0] if rows else None
            self._xmin_due = time.monotonic() + interval_s
        return self._xmin

    def create(
        self,
        session: PostgresSession,
        name: str,
        plugin: str,
        *,
        two_phase: bool = False,
        waiting: Callable[[float], None] = lambda _seconds: None,
    ) -> CreatedSlot:
        """Create the slot and export its snapshot.

        ``waiting`` is called about every half second with the seconds since the command; its
        exceptions end the wait. Raises: SlotNotCreated if open transactions prevent a consistent
        point in time; SourceError.
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
        """Return the command that creates a slot.

        Source: PostgreSQL manual, "Streaming Replication Protocol".
        """
        kind = "TEMPORARY " if self.properties.slot_temporary else ""
        # Options in parentheses came with 15.
        if self.catalogue.version_num >= 150000:
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
        """Return the command that streams a slot after ``lsn``.

        ``options`` go to the output plugin.
        """
        listed = ", ".join(
            "\"{}\" '{}'".format(option, value.replace("'", "''"))
            for option, value in options.items()
        )
        tail = f" ({listed})" if listed else ""
        return f'START_REPLICATION SLOT "{name}" LOGICAL {lsn_text(lsn)}{tail}'

    def refuse_failover(self) -> None:
        """Raise FailoverUnavailable if the server cannot do ``slot.failover``.

        Raises: SourceError.
        """
        if self.properties.slot_failover:
            standby = self.catalogue.standby()
            refusal = failover_refusal(self.catalogue, standby=standby)
            if refusal is not None:
                raise refusal

    def set_failover(self, session: PostgresSession, name: str) -> None:
        """Turn on failover for a slot without a reader.

        The server then copies it to standbys. Raises: SourceError.
        """
        session.execute(f'ALTER_REPLICATION_SLOT "{name}" (FAILOVER true)')

    def drop(self, name: str, ours: Collection[int] = ()) -> bool:
        """Drop the slot and return whether it existed.

        Readers with a pid in ``ours`` are terminated. Raises: SlotActive, SourceError.
        """
        # A walsender whose client has just disconnected needs a moment to release the slot.
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
                # A walsender does not notice the end of its client while it decodes a large
                # transaction, or while the network keeps the disconnection from it.
                if slot is not None and slot.active_pid in ours:
                    self.end_reader(slot)
                time.sleep(0.02)
            else:
                return bool(dropped)

    def left_behind(
        self, slot: ReplicationSlot, sessions: Collection[int], *, leased: bool
    ) -> bool:
        """Return whether the slot's reader is a session without a client.

        Such a reader is one of this run's ``sessions`` whose link broke. With the pipeline's lease
        (``leased``), it may also belong to the previous holder. Raises: SourceError.
        """
        if slot.active_pid in sessions or not leased:
            return slot.active_pid in sessions
        # Only a holder of the lease may read the slot, so another leased reader has lost it.
        rows = self.catalogue.query(
            "SELECT application_name FROM pg_stat_activity WHERE pid = %s", (slot.active_pid,)
        )
        return any(name == f"waltap {session_role(leased=True)}" for (name,) in rows)

    def _end_left_behind(self, slot: ReplicationSlot) -> bool:
        """Terminate the reader; return whether the role may."""
        try:
            self.end_reader(slot)
        except PrivilegeMissing as error:
            # Without the privilege `await_free` waits for this reader as for any other.
            log.warning(
                "pid %s reads slot %s without a client, and cannot be ended: %s",
                slot.active_pid,
                slot.name,
                error.problem,
            )
            return False
        log.info(
            "pid %s, which read slot %s without a client, was ended", slot.active_pid, slot.name
        )
        return True

    def await_free(
        self,
        name: str,
        pause: Callable[[float], None],
        left_behind: Callable[[ReplicationSlot], bool] = lambda _slot: False,
    ) -> None:
        """Wait until the slot has no reader.

        Our own last walsender may not have noticed its end yet. A reader for which ``left_behind``
        returns true is terminated. Raises: SlotActive; the exceptions of ``pause``.
        """
        properties = self.properties
        # Polls are more frequent than ``slot.retry.delay.ms``, but the total time is the same.
        patience = properties.slot_max_retries * properties.slot_retry_delay_ms / 1000
        deadline, reported = time.monotonic() + patience, False
        ended: dict[int, bool] = {}
        while True:
            slot = self.read(name)
            if slot is None or slot.active_pid is None:
                return
            # The server itself would notice a broken link only after ``wal_sender_timeout``.
            if slot.active_pid not in ended and left_behind(slot):
                ended[slot.active_pid] = self._end_left_behind(slot)
            # If its socket is full, it waits for its client to say so, until the second time.
            elif ended.get(slot.active_pid):
                self.end_reader(slot)
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise slot_in_use(self.catalogue, slot)
            if not reported and slot.active_pid not in ended:
                log.warning(
                    "slot %s is read by pid %d: waiting up to %.0f s for it",
                    slot.name,
                    slot.active_pid,
                    patience,
                    extra={"slot": slot.name, "error_code": SlotActive.code},
                )
                reported = True
            pause(min(POLL_S, remaining))

    def end_reader(self, slot: ReplicationSlot) -> None:
        """Terminate the walsender that uses our own slot."""
        # A walsender that still creates the slot does not notice the end of its client.
        if slot.active_pid is not None:
            self.catalogue.query("SELECT pg_terminate_backend(%s)", (slot.active_pid,))

    def wait_notice(self, name: str) -> Callable[[float], None]:
        """Return a callback that logs once why a new slot waits.

        The caller passes it the seconds since the creation began.
        """
        reported = False

        def notice(seconds: float) -> None:
            nonlocal reported
            if reported or seconds < SLOT_SILENCE_S:
                return
            reported = True
            log.warning(
                "the slot can be made once open transactions have ended: %s",
                "; ".join(self._open_transactions()) or "none that this role can see",
                extra={"slot": name},
            )

        return notice

    def _open_transactions(self) -> list[str]:
        """Return the transactions that hold up a new slot, oldest first."""
        rows = self.catalogue.query(
            "SELECT pid, coalesce(usename, '?'), date_trunc('second', xact_start)::text"
            " FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start LIMIT 5"
        )
        prepared = self.catalogue.query(
            "SELECT gid FROM pg_prepared_xacts ORDER BY prepared LIMIT 5"
        )
        waits = [f"pid {pid} of {user} since {since}" for pid, user, since in rows]
        return waits + [f"prepared transaction {gid!r}" for (gid,) in prepared]


# pg_log_standby_snapshot came with this version.
LOGS_SNAPSHOTS_SINCE = 160000


class PostgresSlotWatch(SlotWatch):
    """Watch the slot of one profile over a separate connection."""

    def __init__(self, properties: PostgresProperties, context: SlotWatchContext) -> None:
        """Open the connection. Raises: SourceError, StopRequested."""
        properties = properties.with_password(context.password)
        self._name = properties.slot_name
        self._connection = connect(
            properties, role="slot monitor", watch=watch(properties, context.stopping)
        )
        self._catalogue = PostgresCatalogue(self._connection, properties)
        self._slots = SlotAdmin(self._catalogue)

    def read(self) -> SlotStatus | None:
        slot = self._slots.read(self._name)
        if slot is None:
            return None
        return slot.status(self._catalogue.wal_end(), self._slots.disk())

    def log_standby_snapshot(self) -> str:
        # A slot releases WAL only at a record of running transactions after the confirmed position.
        # A checkpoint writes such a record too, and removes WAL that no slot needs.
        newer = self._catalogue.version_num >= LOGS_SNAPSHOTS_SINCE
        try:
            self._catalogue.query("SELECT pg_log_standby_snapshot()" if newer else "CHECKPOINT")
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
