"""Reading tables as of the hybrid time behind which a slot begins.

The time is that of the slot's making, or what the slot has confirmed: rows that were committed until then
are read, and the stream brings what was committed later. Any number of connections can read at it.
Releases with ``ysql_enable_pg_export_snapshot`` export a snapshot with a slot that is made, for which no
right is needed.

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

CATALOGUE_SQL = (
    "DO $$ BEGIN SET LOCAL yb_disable_catalog_version_check = true;"
    " EXCEPTION WHEN undefined_object THEN NULL;"
    f" WHEN OTHERS THEN {USERS_PATH}; CALL disable_catalog_version_check(); {PINNED_AGAIN}; END $$"
)
"""A release that does not know the setting does not need it."""
READ_TIME_SQL = (
    "DO $$ BEGIN SET LOCAL yb_read_time TO '{time} ht';"
    f" EXCEPTION WHEN OTHERS THEN {USERS_PATH};"
    f" CALL set_yb_read_time('{{time}} ht'); {PINNED_AGAIN}; END $$"
)
"""Only a superuser may set it; for others a superuser makes the procedure."""
HYBRID_TIME = re.compile("[0-9]+")
NOW_SQL = "SELECT yb_get_current_hybrid_time_lsn()"
"""Asked on another connection: a transaction that has read something takes no other time."""
UNKNOWN_FUNCTION = "42883"


class YugabyteReading(ReadingTransaction):
    """A transaction that reads at a hybrid time; ``given`` is that time, in decimal digits. Newer releases
    export a snapshot with a slot, as PostgreSQL does: ``given`` is then its name."""

    def __init__(
        self, properties: PostgresProperties, now: PostgresCatalogue, watch: ServerWaits
    ) -> None:
        super().__init__(properties, now, watch)
        assert isinstance(properties, YugabyteProperties)
        self._wait_s = properties.read_time_wait_ms / 1000
        self._given: str | None = None
        self._consistent = properties.consistent_snapshot

    def adopt(self, given: str) -> None:
        """Raises: ReadTimeRefused, where neither the role nor a procedure may set the time, or the time is
        too long ago; ConnectionLost, where an exported snapshot is gone; SourceError."""
        if not HYBRID_TIME.fullmatch(given):
            super().adopt(given)
            self._given = given
            return
        self.session.execute(CATALOGUE_SQL)
        pause(self._wait_s, stopping=self.session.watch.stopping)
        self.session.execute(READ_TIME_SQL.format(time=int(given)))
        self._given = given

    def export(self) -> str | None:
        """Raises: as `adopt`, where no slot gave a time and that of now is taken."""
        if self._given is None and self._consistent:
            try:
                ((now,),) = self._now.query(NOW_SQL)
            except SourceError as error:
                if error.fields.get("sqlstate") != UNKNOWN_FUNCTION:
                    raise
                return None
            self.adopt(str(now))
        return self._given

    def join(self, leader: ReadingTransaction, given: str) -> None:
        self._wait_s = 0.0  # the leader has waited
        self.begin(given, ONE_SNAPSHOT)
        self.then = leader.then
