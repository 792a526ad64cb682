"""YugabyteDB's arrangement of the PostgreSQL connector's parts."""

import re
from bisect import bisect_left
from dataclasses import replace
from typing import Any

from waltap.changes.decode.message import Commit, Message
from waltap.changes.events import PLAIN, VALUE_AND_SET
from waltap.changes.events.plan import EventForm
from waltap.changes.mapping.envelope import DEBEZIUM_2_5, NEWEST
from waltap.errors import SourceError
from waltap.ports.source.session import PINNED_AGAIN, USERS_PATH
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.dialect import PostgresDialect
from waltap_postgres.replication.stream import ReplicationStream
from waltap_postgres.snapshot.transaction import CatalogShape, ReadingTransaction
from waltap_postgres.start.startup_plan import StartupPlan, StartupState, decide
from waltap_postgres.waiting import ServerWaits, pause
from waltap_yugabyte.chunks import HashPlanner, YugabyteChunks
from waltap_yugabyte.preflight import YugabytePreflight
from waltap_yugabyte.properties import YugabyteProperties
from waltap_yugabyte.publications import YugabytePublications
from waltap_yugabyte.server import YugabyteCatalogue, YugabyteServer
from waltap_yugabyte.slots import YugabyteSlots

# Reading tables as of the hybrid time at which a slot begins.
#
# The time is the slot's creation, or the slot's confirmed position. Rows committed until then are
# read, and the stream sends later commits. Any number of connections can read at that time.
# Releases with ``ysql_enable_pg_export_snapshot`` export a snapshot with a new slot, which needs
# no right.
#
# Source: YugabyteDB documentation, logical replication, "Initial snapshot"; Debezium's connector
# for YugabyteDB, ``PostgresSnapshotChangeEventSource.java`` for the order of statements.

# A release that does not know the setting does not need it.
CATALOGUE_SQL = (
    "DO $$ BEGIN SET LOCAL yb_disable_catalog_version_check = true;"
    " EXCEPTION WHEN undefined_object THEN NULL;"
    f" WHEN OTHERS THEN {USERS_PATH}; CALL disable_catalog_version_check(); {PINNED_AGAIN}; END $$"
)
# Only a superuser may set it; for other roles a superuser creates the procedure.
READ_TIME_SQL = (
    "DO $$ BEGIN SET LOCAL yb_read_time TO '{time} ht';"
    f" EXCEPTION WHEN OTHERS THEN {USERS_PATH};"
    f" CALL set_yb_read_time('{{time}} ht'); {PINNED_AGAIN}; END $$"
)
HYBRID_TIME = re.compile("[0-9]+")
# Runs on another connection: a transaction that has read cannot change its time.
NOW_SQL = "SELECT yb_get_current_hybrid_time_lsn()"
UNKNOWN_FUNCTION = "42883"


class YugabyteReading(ReadingTransaction):
    """Read in a transaction at a hybrid time.

    ``given`` is that time in decimal digits, or the name of an exported snapshot from newer
    releases.
    """

    properties: YugabyteProperties

    def __init__(self, now: PostgresCatalogue, watch: ServerWaits) -> None:
        super().__init__(now, watch)
        self._wait_s = self.properties.read_time_wait_ms / 1000
        self._given: str | None = None

    def use_snapshot(self, given: str) -> None:
        """Read at the time or snapshot ``given``.

        Raises: ReadTimeRefused, where neither the role nor a procedure may set the time, or the
        time is too long ago; ConnectionLost, where an exported snapshot is gone; SourceError.
        """
        if not HYBRID_TIME.fullmatch(given):
            super().use_snapshot(given)
            self._given = given
            return
        self.session.execute(CATALOGUE_SQL)
        # A node refuses a read time ahead of its clock.
        pause(self._wait_s, stopping=self.session.watch.stopping)
        self.session.execute(READ_TIME_SQL.format(time=int(given)))
        self._given = given

    def export(self) -> str | None:
        """Return the time for other connections.

        Without a slot's time the current one is used. Raises: as `use_snapshot`.
        """
        if self._given is None and self.properties.consistent_snapshot:
            try:
                ((now,),) = self._now.query(NOW_SQL)
            except SourceError as error:
                # A release without the function cannot give its time.
                if error.fields.get("sqlstate") != UNKNOWN_FUNCTION:
                    raise
                return None
            self.use_snapshot(str(now))
        return self._given

    def join(self, given: str, seen: str | None, then: dict[int, CatalogShape]) -> None:
        self._wait_s = 0.0  # the leader has waited
        super().join(given, seen, then)


# A stream whose positions count records or are commit times.
#
# Its keepalives carry no position. Source: yugabyte-db, ``yb_virtual_wal_client.c`` (the flush
# pointer is 2^64-1; the effect of a flushed LSN); Debezium's connector for YugabyteDB,
# ``PostgresStreamingChangeEventSource.java``.

# No slot's count is as high, and every commit time is higher.
CLOCK = 1 << 32


class YugabyteStream(ReplicationStream):
    """Report the server's progress by its commits, and acknowledge commits.

    Where LSNs are counts, the end of a commit acknowledges that commit and nothing after it. Where
    they are times, two transactions may have the same one.
    """

    def __init__(self, *arguments: Any, confirmed: int, position: int = 0, **options: Any) -> None:
        # Commit times that were received and not yet acknowledged.
        self._times: list[int] = []
        if max(confirmed, position) > CLOCK:
            # Only earlier times have certainly arrived completely, so this one confirms nothing yet.
            confirmed = position = 0
        super().__init__(*arguments, confirmed=confirmed, position=position, **options)

    def receive(self, timeout: float) -> list[Message]:
        messages = super().receive(timeout)
        if self.committed > CLOCK:
            self._times += [m.commit_lsn for m in messages if type(m) is Commit]
        return messages

    def idle_lsn(self) -> int:
        return self.committed

    def confirm(self, end_lsn: int) -> None:
        if end_lsn <= CLOCK:
            super().confirm(end_lsn)
            return
        # Acknowledge the last time before the durable one: another transaction with the durable
        # time may still come.
        before = bisect_left(self._times, end_lsn - 1)
        if before:
            sure = self._times[before - 1]
            del self._times[: before - 1]
            super().confirm(sure)


NAMING_UNSENT = replace(NEWEST, name="with the names of unsent fields", unsent=True)


def _decide(situation: StartupState) -> StartupPlan:
    """Decide as PostgreSQL's connector, except for a broken-off snapshot.

    Such a snapshot is read again with the existing slot.
    """
    decision = decide(situation)
    # The slot's time is still the snapshot's. Dropping the slot would only succeed minutes after
    # its last reader.
    slot = decision.slot
    keeps = slot is not None and slot.snapshot is not None and not slot.invalidated
    if decision.new_slot and keeps and decision.snapshot and situation.unreadable is None:
        return replace(decision, new_slot=False, begun=False)
    return decision


YUGABYTEDB = PostgresDialect(
    catalogue=YugabyteCatalogue,
    identity=YugabyteServer,
    slots=YugabyteSlots,
    publications=YugabytePublications,
    decide=_decide,
    reading=YugabyteReading,
    planner=HashPlanner,
    chunks=YugabyteChunks,
    stream=YugabyteStream,
    preflight=YugabytePreflight,
)


def event_form(properties: YugabyteProperties, decoder: str) -> EventForm:
    """Return the form of events.

    It is Debezium's at version 2.5, or waltap's plain form.
    """
    if properties.event_form == "plain":
        return EventForm(envelope=NAMING_UNSENT)
    return EventForm(cell=VALUE_AND_SET if decoder == "yboutput" else PLAIN, envelope=DEBEZIUM_2_5)
