"""Publications of YugabyteDB.

The server lacks the WAL and system columns that PostgreSQL's checks use. A slot streams the
publication as of the slot's creation, or as of its last refresh. A refresh takes up to
``cdcsdk_publication_list_refresh_interval_secs``. Changes to a table that joins before the refresh
are never sent. So the slot's entry stores when each table joined
(`waltap.ports.offsets.owned_objects.OwnedObject`), and a table is read after the refresh.

A table may exist when the slot is created and stay unstreamed for four hours. Then the cluster
regards it as not of interest and drops the changes that the slot would need. If it joins later,
the slot becomes unusable.

Source: yugabyte-db, ``cdcsdk_virtual_wal.cc``, ``xrepl_catalog_manager.cc``; documentation of
logical replication, "Adding tables to a publication" and its limitations.
"""

import logging
import time
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from waltap.errors import SourceError
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap.ports.source.connector import PublicationCompleteness
from waltap_postgres.catalog.catalogue import TableId
from waltap_postgres.errors import INSERTS_SUFFIX
from waltap_postgres.replication.publication_completeness import Membership
from waltap_postgres.replication.publications import PublicationSet
from waltap_yugabyte.errors import TableTooLate
from waltap_yugabyte.properties import YugabyteProperties
from waltap_yugabyte.server import release

log = logging.getLogger(__name__)

NOT_AT_ONCE = (
    "%s: added to the publication of an existing slot. Releases before 2026.1 stream it within 15 "
    "minutes (cdcsdk_publication_list_refresh_interval_secs), without the changes until then: an "
    "incremental snapshot waits for that time before it reads. "
    "waltap.new.tables=snapshot asks for one, as does `waltap snapshot FILE %s`, or an execute-snapshot "
    "signal"
)
# From this release on a slot follows its publication immediately.
FOLLOWS_AT_ONCE = 2026, 1
# While a table waits, the server is asked for its time at this interval.
ASK_S = 1.0

NOW_SQL = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
NEWEST_SQL = "SELECT max(oid::int8) FROM pg_class"
# Returns schema, table, its OID, and the OID of its membership. The last is NULL where a
# publication has all tables. A table that was removed and added again has a new one.
MEMBERS_SQL = """
SELECT t.schemaname::text, t.tablename::text, c.oid::int8,
       (SELECT max(r.oid::int8) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
         WHERE r.prrelid = c.oid AND p.pubname = ANY(%s))
  FROM pg_publication_tables t
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = ANY(%s)
"""


class YugabytePublications(PublicationSet):
    """Manage publications that a slot follows with a delay."""

    _properties: YugabyteProperties

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Tables that join the publication of an existing slot; `begun` counts their time from then.
        self._unsent: set[TableId] = set()
        self._asked_at: dict[TableId, tuple[float, float]] = {}
        self._reported: set[TableId] = set()
        self._refresh: float | None = None

    def gone(self) -> SourceError | None:
        return None  # a slot cannot be asked for its first change

    def memberships(self) -> dict[str, Membership]:
        return {}  # the server has no evidence that a member was removed and added again

    def writers(self, table: str) -> frozenset[str]:
        return frozenset()  # pg_locks may be unavailable; a table is read after the slot's refresh

    def completeness(self) -> PublicationCompleteness:
        # No TRUNCATE is streamed, and the server has no history of publications.
        return PublicationCompleteness()

    def adds_tables(self) -> bool:
        """Return whether a new table may be read after the slot's refresh.

        That includes a table that a publication of all tables has by itself.
        """
        modes = {"filtered", "all_tables"}
        return self._used and self._properties.publication_autocreate_mode in modes

    def streams_new(self, schema: str) -> bool:
        return not self._refresh_s() and super().streams_new(schema)

    def make(self, *, new_slot: bool = False) -> None:
        self._unsent = set() if new_slot else self.unsent()
        self._refuse(self._unsent)
        super().make(new_slot=new_slot)
        self._report(self._unsent)

    def check(self, table_ids: Iterable[TableId]) -> None:
        table_ids = list(table_ids)
        self._refuse(set(table_ids) - self._members().keys())
        super().check(table_ids)

    def publish(
        self, table_ids: Iterable[TableId], *, wanted: bool, briefly: bool = False
    ) -> list[TableId] | None:
        table_ids = list(table_ids)
        if wanted:
            self._refuse(set(table_ids) - self._members().keys())
        done = super().publish(table_ids, wanted=wanted, briefly=briefly)
        if wanted and done is not None:
            self._report(done)
        return done

    def begun(self, *, slot_created: bool) -> None:
        entry = self._slot()
        if not self._used or entry is None:
            return
        now, members = self._now(), self._members()
        if slot_created:
            ((newest,),) = self._catalogue.query(NEWEST_SQL)
            entry = msgspec.structs.replace(entry, made_at=now, newest=newest)
        known = dict(entry.streams)
        if slot_created or not (known or entry.made_at):  # the entry is older than stored times
            known = {
                member_id: 0
                for table_id, member_id in members.items()
                if table_id not in self._unsent
            }
        self._keep(entry, {member_id: known.get(member_id, now) for member_id in members.values()})

    def wait_s(self, table_id: TableId) -> float:
        refresh_s = self._refresh_s()
        if not self._used or not refresh_s:
            return 0.0
        asked, remaining_s = self._asked_at.get(table_id, (0.0, 0.0))
        if remaining_s and time.monotonic() < asked + min(ASK_S, remaining_s):
            return remaining_s
        remaining_s = max(0.0, refresh_s - self._member_s(table_id))
        self._asked_at[table_id] = time.monotonic(), remaining_s
        if remaining_s and table_id not in self._reported:
            self._reported.add(table_id)
            name = ".".join(table_id)
            log.info(
                "%s joined the publication: it is read in %.0f s, when the slot has followed (%s)",
                name,
                remaining_s,
                "yb.publication.refresh.ms",
                extra={"table": name},
            )
        return remaining_s

    def _member_s(self, table_id: TableId) -> float:
        """Return for how many seconds a table has been a member."""
        entry, member_id = self._slot(), self._members().get(table_id)
        if entry is None or member_id is None:
            return float("inf")
        known, now = dict(entry.streams), self._now()
        # Without a stored time, another process added it; assume that it just joined.
        if member_id not in known:
            known[member_id] = now
            self._keep(entry, known)
        return (now - known[member_id]) / 1e6

    def _refuse(self, table_ids: Collection[TableId]) -> None:
        """Refuse tables that would make the slot unusable. Raises: TableTooLate."""
        entry = self._slot() if table_ids else None
        if entry is None or not entry.made_at:
            return
        age_ms = (self._now() - entry.made_at) / 1000
        if age_ms <= self._properties.table_interest_ms or not self._catalogue.query(
            "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (entry.name,)
        ):
            return
        # A table that was created after the slot has a higher OID and may join at any time.
        there = {table_id: self._catalogue.table(*table_id) for table_id in table_ids}
        old = sorted(
            ".".join(table_id)
            for table_id, table in there.items()
            if table is not None and table.relation.oid <= entry.newest
        )
        if old:
            hours = age_ms / 3_600_000
            raise TableTooLate(
                f"{', '.join(old)}: to join the publication of slot {entry.name!r}, which was made "
                f"{hours:.1f} hours ago and has not streamed them since",
                names=", ".join(old),
            )

    def _refresh_s(self) -> float:
        """Return how long the slot may take to follow its publication."""
        if self._refresh is None:
            found = release(self._catalogue.query("SELECT version()")[0][0])
            parts = tuple(int(part) for part in (found or "0").split(".")[:2])
            # A configured time wins over the release's.
            given = "publication_refresh_ms" in self._properties.model_fields_set
            at_once = parts >= FOLLOWS_AT_ONCE and not given
            self._refresh = 0.0 if at_once else self._properties.publication_refresh_ms / 1000
        return self._refresh

    def _now(self) -> int:
        ((now,),) = self._catalogue.query(NOW_SQL)
        return int(now)

    def _members(self) -> dict[TableId, str]:
        """Return the id of each published table.

        A new table of the same name has another id.
        """
        name = self._properties.publication_name
        names = list(self.names or (name, name + INSERTS_SUFFIX))
        return {
            (schema, table): f"{oid}/{membership or 0}"
            for schema, table, oid, membership in self._catalogue.query(MEMBERS_SQL, (names, names))
        }

    def _slot(self) -> OwnedObject | None:
        publication = self._owned_object(self._properties.publication_name)
        table_id = "slot", self._properties.slot_name, publication.system_id, publication.database
        return self._context.owned_objects.find(*table_id)

    def _keep(self, entry: OwnedObject, streams: dict[str, int]) -> None:
        updated = msgspec.structs.replace(entry, streams=tuple(sorted(streams.items())))
        self._context.owned_objects.keep(updated)

    @staticmethod
    def _report(table_ids: Iterable[TableId]) -> None:
        names = [".".join(table_id) for table_id in sorted(table_ids)]
        if names:
            log.warning(NOT_AT_ONCE, ", ".join(names), " ".join(names))
