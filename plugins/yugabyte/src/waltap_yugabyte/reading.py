"""Reading tables as of the hybrid time at which a slot begins.

The time is the slot's creation, or the slot's confirmed position. Rows committed until then are
read, and the stream sends later commits. Any number of connections can read at that time. Releases
with ``ysql_enable_pg_export_snapshot`` export a snapshot with a new slot, which needs no right.

Source: YugabyteDB documentation, logical replication, "Initial snapshot"; Debezium's connector for
YugabyteDB, ``PostgresSnapshotChangeEventSource.java`` for the order of statements.
"""

import re

from waltap.errors import SourceError
from waltap.session import PINNED_AGAIN, USERS_PATH
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.snapshot.transaction import ONE_SNAPSHOT, ReadingTransaction
from waltap_postgres.waiting import ServerWaits, pause
from waltap_yugabyte.properties import YugabyteProperties

__all__ = ["YugabyteReading"]

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

    def __init__(
        self, properties: PostgresProperties, now: PostgresCatalogue, watch: ServerWaits
    ) -> None:
        super().__init__(properties, now, watch)
        assert isinstance(properties, YugabyteProperties)
        self._wait_s = properties.read_time_wait_ms / 1000
        self._given: str | None = None
        self._consistent = properties.consistent_snapshot

    def adopt(self, given: str) -> None:
        """Read at the time or snapshot ``given``.

        Raises: ReadTimeRefused, where neither the role nor a procedure may set the time, or the
        time is too long ago; ConnectionLost, where an exported snapshot is gone; SourceError.
        """
        if not HYBRID_TIME.fullmatch(given):
            super().adopt(given)
            self._given = given
            return
        self.session.execute(CATALOGUE_SQL)
        # A node refuses a read time ahead of its clock.
        pause(self._wait_s, stopping=self.session.watch.stopping)
        self.session.execute(READ_TIME_SQL.format(time=int(given)))
        self._given = given

    def export(self) -> str | None:
        """Return the time for other connections.

        Without a slot's time the current one is used. Raises: as `adopt`.
        """
        if self._given is None and self._consistent:
            try:
                ((now,),) = self._now.query(NOW_SQL)
            except SourceError as error:
                # A release without the function cannot give its time.
                if error.fields.get("sqlstate") != UNKNOWN_FUNCTION:
                    raise
                return None
            self.adopt(str(now))
        return self._given

    def join(self, leader: ReadingTransaction, given: str) -> None:
        self._wait_s = 0.0  # the leader has waited
        self.begin(given, ONE_SNAPSHOT)
        self.then = leader.then
