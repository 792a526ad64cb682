"""A pipeline's lease: an advisory lock of a monitored session.

The server ends a silent session by ``idle_session_timeout`` (PostgreSQL 14). It cannot notice a
paused process or a dead link otherwise.
"""

import hashlib
import os
import socket

import psycopg

from waltap.clock import boot_seconds
from waltap.errors import ConnectionLost, SourceError
from waltap.ports.source.lease import LeaderLease, LeaseContext
from waltap_postgres.connection import connect, driver_error
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.waiting import ServerWaits

OLDEST = 140000

OWNER_SQL = b"""
SELECT a.pid, a.application_name, coalesce(host(a.client_addr), 'the server''s own machine')
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (l.classid::int8 << 32) | l.objid::int8 = %s
"""


StandbyUnavailable = SourceError.define("StandbyUnavailable", "WT-2123")


def lock_number(text: str) -> int:
    """Return the number of an advisory lock, a hash of ``text`` of 64 bits."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


class PostgresLease(LeaderLease):
    """Hold the advisory lock of a slot's name in its database."""

    def __init__(self, properties: PostgresProperties, context: LeaseContext) -> None:
        """Open the session. Raises: SourceError, StopRequested."""
        properties = properties.with_password(context.password)
        self._properties, self._seconds = properties, context.seconds
        self._key = lock_number(f"waltap lease {properties.slot_name}")
        self._until = 0.0
        watch = ServerWaits(context.stopping, deadline_s=context.seconds)
        role = f"lease of {socket.gethostname():.30}:{os.getpid()}"
        self._connection = connect(properties, role=role, watch=watch)
        version = self._connection.info.server_version
        if version < OLDEST:
            self.close()
            raise StandbyUnavailable(
                f"PostgreSQL {version // 10000} does not end sessions that are silent"
            )
        try:
            self._ask(f"SET idle_session_timeout = {round(context.seconds * 1000)}".encode())
        except BaseException:
            self.close()
            raise

    def take(self) -> str | None:
        sent = boot_seconds()
        ((locked,),) = self._ask(b"SELECT pg_try_advisory_lock(%s)", self._key)
        if locked:
            self._until = sent + self._seconds
            return None
        return self.owner() or "a process that is just leaving"

    def owner(self) -> str | None:
        for pid, application, address in self._ask(OWNER_SQL, self._key):
            return f"{application or 'a session'} from {address} (server process {pid})"
        return None

    def renew(self) -> None:
        sent = boot_seconds()
        self._ask(b"SELECT 1")
        self._until = sent + self._seconds

    def held(self) -> bool:
        return boot_seconds() < self._until

    def close(self) -> None:
        self._until = 0.0
        self._connection.close()

    def _ask(self, sql: bytes, *parameters: object) -> list[tuple[object, ...]]:
        try:
            cursor = self._connection.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if self._connection.closed and error.sqlstate is None:
                raise ConnectionLost("the session of the lease is gone") from error
            raise driver_error(error, self._properties) from error
