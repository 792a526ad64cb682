"""Plan, create, query and drop the publications of one connection."""

import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec
import psycopg

from waltap.base.text import sql_name
from waltap.errors import SourceError
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap.ports.source.connector import ConnectorContext, PublicationCompleteness
from waltap.ports.source.published import NARROWS, PublishedSubset, narrowings
from waltap_postgres.catalog.catalogue import LOCK_MS, CatalogTable, PostgresCatalogue, TableId
from waltap_postgres.connection import driver_error
from waltap_postgres.errors import (
    INSERTS_OPERATIONS,
    INSERTS_SUFFIX,
    IdentityMissing,
    PublicationDropped,
    PublicationGone,
    PublicationMissing,
    SlotActive,
    TableLocked,
)
from waltap_postgres.replication.publication import (
    SKIPS_MISSING,
    PublicationPlan,
    members,
    named_members,
    partitions,
    plan_publication,
    published,
    published_by_any,
    published_operations,
    refuse_keyless,
    run_statements,
    without_updates,
)
from waltap_postgres.replication.publication_completeness import (
    OPERATIONS,
    SCHEMAS,
    Membership,
    completeness,
    find_memberships,
    rewritten,
    shortfalls,
)

log = logging.getLogger(__name__)


# Seconds that a slot may take to return its first changes.
PEEK_S = 10
# Changes to look at. The server keeps them in a temporary file until it answers. Beyond them the
# stream ends with the error, whose remedy reads the tables again.
PEEK_CHANGES = 100_000


# Transactions with a lock to write to a table or to one of its partitions. A standby does not know
# locks of writers: all open transactions count there.
WRITERS = """
    WITH RECURSIVE tree AS (
      SELECT %s::oid AS relation
      UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON t.relation = i.inhparent
    )
    SELECT l.virtualtransaction FROM pg_locks l JOIN tree t ON t.relation = l.relation
    WHERE l.locktype = 'relation' AND l.granted AND l.mode IN
        ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION SELECT x::text FROM txid_snapshot_xip(txid_current_snapshot()) x WHERE pg_is_in_recovery()
"""


class PublicationSet:
    """Manage the publications of one pipeline.

    ``captured`` returns the captured tables, ``owned_object`` the entry of a publication by its
    name.
    """

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        context: ConnectorContext,
        *,
        captured: Callable[[], list[CatalogTable]],
        owned_object: Callable[[str], OwnedObject],
    ) -> None:
        self._catalogue, self._connection = catalogue, catalogue.connection
        self._properties, self._context = catalogue.properties, context
        self._captured, self._owned_object = captured, owned_object
        self._version_num = catalogue.version_num
        self._used = context.decoder.capabilities.publication_filters
        # Publications that this run created for the first time, which `undo` drops.
        self._made: list[str] = []
        # Whether `gone` has asked the server already.
        self._asked = False
        self._gone: SourceError | None = None
        # Publications that the stream asks for; () before they are known, and always for a
        # decoder that uses none.
        self.names: tuple[str, ...] = ()

    def plan(self, *, new_slot: bool = False) -> PublicationPlan:
        """Plan the publications without changing the server.

        ``new_slot``: the existing slot is created again. Raises: PublicationMissing,
        IdentityMissing.
        """
        operations = published_operations(self._context.capture)
        captured = self._captured()
        inserts = self._properties.publication_name + INSERTS_SUFFIX
        dropped = self._knows(inserts) and published(self._catalogue, inserts) is None
        with self._catalogue.once():
            plan = plan_publication(
                self._catalogue, captured, operations=operations, inserts_known=new_slot or dropped
            )
            every = operations or ", ".join(OPERATIONS.values())
            for name in plan.names:
                if name not in plan.created:
                    self._complete(plan, name, captured, every)
        return plan

    def _complete(
        self, plan: PublicationPlan, name: str, captured: list[CatalogTable], publish: str
    ) -> None:
        """Add the shortfalls of ``name`` to the plan, and fix our own."""
        root, capture = self._properties.publish_via_partition_root, self._context.capture
        covered = published(self._catalogue, name) or set()
        inserts = name != self._properties.publication_name
        operations = [
            word for letter, word in OPERATIONS.items() if letter not in capture.skipped_operations
        ]
        wanted = {t.relation.table_id for t in members(captured, via_root=root)}
        trees = {t.relation.table_id for t in captured if t.partition or t.partitioned}
        lacks = shortfalls(
            self._catalogue,
            name,
            capture,
            table_ids=frozenset(covered & wanted),
            trees=frozenset(trees & covered if inserts else trees),
            operations=[o for o in operations if not inserts or o in INSERTS_OPERATIONS],
            publish=INSERTS_OPERATIONS if inserts else publish,
        )
        found = list(lacks)
        plan.shortfalls += [(name, shortfall) for shortfall in found]
        entry = self._context.owned_objects.find(*self._owned_object(name).key)
        managed = self._properties.publication_autocreate_mode == "disabled"
        # The owner of a foreign publication may have limited it on purpose.
        if not found or entry is None or not entry.made or managed:
            return
        plan.mended.add(name)
        for shortfall in found:
            plan.statements += shortfall.statements
            plan.unsent |= shortfall.table_ids

    def narrowed(self) -> dict[TableId, PublishedSubset]:
        """Return the published part of tables with row or column filters."""
        # Debezium's snapshots read whole tables whatever the publication filters.
        if not self._used or self._version_num < NARROWS or self._context.debezium:
            return {}
        names = self.names or self._planned().names
        return narrowings(self._catalogue.query, names) if names else {}

    def _planned(self) -> PublicationPlan:
        """Return the plan, an empty one where a start would be refused."""
        try:
            return self.plan() if self._used else PublicationPlan(())
        except (PublicationMissing, IdentityMissing):  # a start reports it
            return PublicationPlan(())

    def _knows(self, name: str) -> bool:
        return self._context.owned_objects.find(*self._owned_object(name).key) is not None

    def gone(self) -> SourceError | None:
        """Return why the existing slot cannot be read, None if it can.

        Its first change is older than the publication, or later than the publication's end. None
        also means that the server took too long to answer, or that another reads the slot: the
        next call asks again then.
        """
        # Newer servers skip such changes instead of failing.
        if not self._used or self._version_num >= SKIPS_MISSING:
            return None
        if not self._asked:
            try:
                gone = self._first_change()
            except SlotActive:
                return None
            self._asked, self._gone = True, gone and self.meant(gone)
        return self._gone

    def meant(self, error: SourceError) -> SourceError:
        """Return ``error``, as PublicationDropped if the pipeline had it.

        Otherwise the profile may name another publication than before, and nothing is lost.
        """
        if type(error) is PublicationGone and self._knows(self._properties.publication_name):
            return PublicationDropped(error.problem, **error.fields)
        return error

    def _first_change(self) -> SourceError | None:
        """Return why the slot's first change cannot be decoded.

        Raises: SlotActive, SourceError.
        """
        slot, name = self._properties.slot_name, self._properties.publication_name
        # A publication that is older than all that the slot can decode needs no check.
        if not self._catalogue.query(
            "SELECT 1 FROM pg_replication_slots s LEFT JOIN pg_publication p ON p.pubname = %s"
            " WHERE s.slot_name = %s AND s.database = current_database()"
            " AND s.plugin = %s AND (p.oid IS NULL OR age(p.xmin) <= age(s.catalog_xmin))",
            (name, slot, self._context.decoder.output_plugin),
        ):
            return None
        try:
            with self._connection.transaction():
                self._connection.execute(f"SET LOCAL statement_timeout = '{PEEK_S}s'".encode())
                # Peek, so that the slot does not advance. The first changes may be ones that were
                # delivered and not confirmed: those do not miss the publication.
                self._connection.execute(
                    "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, NULL, %s,"
                    " 'proto_version', '1', 'publication_names', %s)",
                    (slot, PEEK_CHANGES, sql_name(name)),
                )
        except psycopg.Error as error:
            meaning = driver_error(error, self._properties, streaming=True)
            if error.sqlstate is None or isinstance(meaning, SlotActive):
                raise meaning from error
            return meaning if isinstance(meaning, PublicationGone) else None
        return None

    def statements(self, *, new_slot: bool = False) -> list[str]:
        """Return the statements that `make` would run. Raises: SourceError, OffsetError."""
        return self.plan(new_slot=new_slot).statements if self._used else []

    def make(self, *, new_slot: bool = False) -> None:
        """Create or change the publications, if the decoder uses any.

        Raises: SourceError, OffsetError.
        """
        if not self._used:
            return
        plan = self.plan(new_slot=new_slot)
        again = set(filter(self._knows, plan.created))
        owned = map(self._owned_object, plan.created)
        # `making` must see TableLocked: it keeps its entries after PublicationLocked, a lost connection.
        with plan.lock_explained(self._catalogue), self._context.owned_objects.making(*owned):
            plan.run(self._catalogue)
        self.names = plan.names
        self._made = [name for name in plan.created if name not in again]
        self._context.made.publications.update(plan.created)

    def begun(self, *, slot_created: bool) -> None:
        """Record from which position on the slot streams which tables.

        Called when the slot exists and before it is streamed. Raises: SourceError, OffsetError.
        """

    def wait_s(self, _table: TableId) -> float:
        """Return the seconds before a snapshot may read a table.

        Until then the stream does not send rows that are written after the read. Raises:
        SourceError, OffsetError.
        """
        return 0.0

    def completeness(self) -> PublicationCompleteness:
        """Return the tables of which the stream has every change.

        Nothing is known without a publication.
        """
        decoder = self._context.decoder
        options = {name.rpartition(".")[2]: value for name, value in decoder.options.items()}
        options.update(self._properties.stream_params)
        # Another origin leaves out the changes that were replicated into this database.
        everything = options.get("origin", "any") == "any"
        if not (self._used and decoder.capabilities.truncate and everything):
            return PublicationCompleteness()
        return completeness(self._catalogue, self.names, self._captured())

    def publish(
        self, table_ids: Iterable[TableId], *, wanted: bool, briefly: bool = False
    ) -> list[TableId] | None:
        """Add tables to the existing publication, or remove them.

        Return the tables that this changed; ``briefly`` is as for `PublishingSource.publish`. Raises:
        SourceError, OffsetError.
        """
        name = self._properties.publication_name
        covered = published(self._catalogue, name) if self._used else None
        if covered is None:
            return []  # the first start creates it
        named = named_members(self._catalogue, name)
        inserts = name + INSERTS_SUFFIX
        if not wanted:
            dropped = set(table_ids)
            if self._properties.publish_via_partition_root:
                dropped.update(partitions(self._catalogue, table_ids))
            for each in (name, inserts):
                members = named_members(self._catalogue, each).keys() & dropped
                if members:
                    self._alter(each, members, wanted=False)
            return [table_id for table_id in table_ids if table_id in named]
        new = [
            table_id for table_id in table_ids if table_id not in covered and table_id not in named
        ]
        apart = self.only_inserts(new)
        # While the stream does not read the publication of inserts, it must stay empty:
        # `_inserts_usable` takes its tables as proof that the slot can decode it.
        if apart and not self._asked_for(inserts):
            new = [table_id for table_id in new if table_id not in apart]
            apart = set()
        for each, members in ((name, set(new) - apart), (inserts, apart)):
            missing = members - named_members(self._catalogue, each).keys()
            if missing and published(self._catalogue, each) is not None:
                try:
                    self._alter(each, missing, wanted=True, briefly=briefly)
                except TableLocked:
                    if briefly:
                        return None
                    raise
        return new

    def _asked_for(self, name: str) -> bool:
        """Return whether the stream, of any process, or the next asks for ``name``."""
        if self.names:
            return name in self.names
        running = self._catalogue.query(
            "SELECT a.query FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid"
            " WHERE s.slot_name = %s",
            (self._properties.slot_name,),
        )
        used = name in self._planned().names
        return used and all(sql_name(name) in command for (command,) in running)

    def check(self, table_ids: Iterable[TableId]) -> None:
        """Raise the SourceError with which `publish` would refuse tables."""
        self.only_inserts(table_ids)

    def only_inserts(self, table_ids: Iterable[TableId]) -> set[TableId]:
        """Return the tables to publish only inserts of. Raises: IdentityMissing."""
        policy = self._properties.publication_keyless_tables
        tables = [self._catalogue.table(*table_id) for table_id in table_ids]
        name = self._properties.publication_name
        keyless = without_updates(self._catalogue, name, filter(None, tables))
        if policy == "refuse":
            refuse_keyless(keyless)
        return {t.relation.table_id for t in keyless} if policy == "inserts" else set()

    def _alter(
        self, name: str, table_ids: Iterable[TableId], *, wanted: bool, briefly: bool = False
    ) -> None:
        """Add tables to a publication, or remove them. Raises: SourceError."""
        chosen = sorted(table_ids)
        tables = ", ".join(sql_name(*table_id) for table_id in chosen)
        alter = f"ALTER PUBLICATION {sql_name(name)} {'ADD' if wanted else 'DROP'} TABLE {tables}"
        # Lock the table against writers before adding it. Rows that an open transaction has already
        # written would not be streamed, and a snapshot that reads the table now would not see them.
        lock = f"LOCK TABLE {tables} IN SHARE MODE" if wanted else None
        run_statements(
            self._catalogue,
            [alter],
            lock=lock,
            tables=chosen,
            timeout_ms=LOCK_MS if briefly else None,
        )

    def adds_tables(self) -> bool:
        """Return whether waltap adds captured tables to the publication."""
        return self._used and self._properties.publication_autocreate_mode == "filtered"

    def find(self) -> tuple[str, ...]:
        """Return `names`; plan the publications if none was created yet."""
        if not self.names and self._used:
            self.names = self.plan().names
        return self.names

    def cover(self, table_ids: Iterable[TableId]) -> set[TableId]:
        """Return the published of these tables, all without a publication."""
        if self.names:
            return set(table_ids) & published_by_any(self._catalogue, self.names)
        return set(table_ids)

    def left_out(self, table_ids: Iterable[TableId]) -> set[TableId]:
        """Return the tables of ``table_ids`` that no publication has."""
        skips = self._version_num >= SKIPS_MISSING
        names = self.names or self._planned().names
        missing = any(published(self._catalogue, name) is None for name in names)
        # An older server fails for a missing publication instead of skipping, so it loses nothing.
        if not names or (missing and not skips):
            return set()
        return set(table_ids) - published_by_any(self._catalogue, names)

    def unsent(self) -> set[TableId]:
        """Return the plan's incompletely published tables.

        None are returned where a start would be refused.
        """
        return self._planned().unsent

    def memberships(self) -> dict[str, Membership]:
        """Return OID → membership of each captured table.

        It differs after a change of a row filter, a column list or the operations, and after a
        table was removed and added again.
        """
        name, captures = self._properties.publication_name, self._context.captures
        names = (name, name + INSERTS_SUFFIX) if self._used else ()
        found = find_memberships(self._catalogue, names)
        # Without lists a table is captured under any name, so a rename and back loses nothing.
        by_name = self._context.capture.selects_by_name
        return {
            oid: each if by_name or each.by_schema else msgspec.structs.replace(each, named=None)
            for oid, each in found.items()
            if captures(each.schema, each.name)
        }

    def sent_less(
        self, before: Mapping[str, Membership], now: Mapping[str, Membership]
    ) -> frozenset[str]:
        """Return the tables whose publication may have lacked changes in between.

        ``before`` and ``now`` are results of `memberships`."""
        found, moved = set(), {}
        name, inserts = (self._properties.publication_name + end for end in ("", INSERTS_SUFFIX))
        own = name, inserts, f"{name} {inserts}"
        others = {each for was in before.values() for each in was.by.split()[1:]} - {*own}
        refuses = others and self._version_num < SKIPS_MISSING
        former = find_memberships(self._catalogue, others) if refuses else {}
        for oid, was in before.items():
            each = now.get(oid, was)
            continues = oid in former and former[oid].how == was.how
            if each.sent_less(was, own, continues=continues):
                found.add(oid)
            elif each.by == was.by and each.file and was.file and each.file != was.file:
                # Another file: only a look at the rows shows whether the table was unlogged.
                moved[oid] = each
        return frozenset(found | rewritten(self._connection, moved, before))

    def writers(self, table: str) -> frozenset[str]:
        """Return the open transactions that may have written to a table.

        ``table`` is its OID.
        """
        if not self._used:
            return frozenset()
        return frozenset(row[0] for row in self._catalogue.query(WRITERS, (table,)))

    def streams_new(self, schema: str) -> bool:
        """Return whether a publication covers new tables of ``schema``."""
        if not self.names:
            return True
        sql, parameters = "puballtables", [list(self.names)]
        if self._version_num >= SCHEMAS:
            sql += (
                " OR EXISTS (SELECT FROM pg_publication_namespace s JOIN pg_namespace n"
                " ON n.oid = s.pnnspid WHERE s.pnpubid = p.oid AND n.nspname = ANY(%s))"
            )
            parameters.append([schema])
        query = f"SELECT 1 FROM pg_publication p WHERE pubname = ANY(%s) AND ({sql})"
        return bool(self._catalogue.query(query, tuple(parameters)))

    def undo(self) -> None:
        """Drop the publications that `make` created for the first time."""
        # Re-created ones stay: the next start must also see that they had been dropped.
        self.drop(self._made)
        self._made = []

    def drop(self, names: Iterable[str]) -> None:
        """Drop publications and their ownership entries. Raises: SourceError, OffsetError."""
        for name in sorted(names):
            try:
                self._connection.execute(f"DROP PUBLICATION IF EXISTS {sql_name(name)}".encode())
            except psycopg.Error as error:
                raise driver_error(error, self._properties) from error
            self._context.made.publications.discard(name)
            self._context.owned_objects.forget([self._owned_object(name)])
