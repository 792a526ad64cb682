"""The publications of one connection: planned, made, asked what they cover, and dropped again."""

import logging
from collections.abc import Callable, Iterable, Mapping

import psycopg

from waltap.offsets.owned_objects import OwnedObject
from waltap.source.completeness import PublicationCompleteness
from waltap.source.connector import ConnectorContext
from waltap.source.published import NARROWS, PublishedSubset, narrowings
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.connection import driver_error, identify
from waltap_postgres.errors import (
    INSERTS_OPERATIONS,
    INSERTS_SUFFIX,
    IdentityMissing,
    PublicationDropped,
    PublicationGone,
    PublicationMissing,
)
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.completeness import coverage
from waltap_postgres.replication.membership import alter_membership, named_in
from waltap_postgres.replication.memberships import Membership, find_memberships, rewritten
from waltap_postgres.replication.publication import (
    SKIPS_MISSING,
    PublicationPlan,
    identifier,
    members,
    plan_publication,
    published,
    published_by_any,
    published_operations,
    refuse_keyless,
    streams_new,
)
from waltap_postgres.replication.shortfall import (
    OPERATIONS,
    WantedPublication,
    shortfalls,
    wanted_columns,
    wanted_operations,
)

__all__ = ["PublicationSet"]

log = logging.getLogger(__name__)

PEEK_S = 10
"""How long a slot may take to give its first change, in seconds."""


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
"""Which transactions hold locks to write to a table, or to a partition of it. A standby knows no locks of
writers: all that are open there."""


class PublicationSet:
    """``names`` are those that the stream asks for, () before that is known, and always where the
    decoder uses none.

    ``captured`` gives the captured tables, ``belonging`` the entry of a publication by its name.
    """

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        connection: "psycopg.Connection[tuple[object, ...]]",
        properties: PostgresProperties,
        context: ConnectorContext,
        *,
        captured: Callable[[], list[CatalogTable]],
        belonging: Callable[[str], OwnedObject],
    ) -> None:
        self._catalogue, self._connection = catalogue, connection
        self._properties, self._context = properties, context
        self._captured, self._belonging = captured, belonging
        self._version_num = connection.info.server_version
        self._used = context.decoder.capabilities.filters
        self._made: list[str] = []
        self._asked = False
        self._gone: PublicationGone | None = None
        self.names: tuple[str, ...] = ()

    def plan(self, *, new_slot: bool = False) -> PublicationPlan:
        """Decide what to do; changes nothing. ``new_slot``: the slot that is there is made anew.

        Raises: PublicationMissing, IdentityMissing.
        """
        operations = published_operations(self._context.capture)
        captured = self._captured()
        inserts = self._belonging(self._properties.publication_name + INSERTS_SUFFIX)
        plan = plan_publication(
            self._catalogue,
            self._properties,
            captured,
            operations=operations,
            version_num=self._version_num,
            inserts_known=new_slot or self._dropped(inserts),
        )
        for name in plan.names:
            if name not in plan.created:
                self._complete(plan, name, captured, operations or ", ".join(OPERATIONS.values()))
        return plan

    def _complete(
        self, plan: PublicationPlan, name: str, captured: list[CatalogTable], publish: str
    ) -> None:
        """Look for what ``name`` leaves out. A publication that this pipeline made is put right; one that
        somebody else made may be so on purpose, and is left alone."""
        root, capture = self._properties.publish_via_partition_root, self._context.capture
        covered = published(self._catalogue, name) or set()
        inserts = name != self._properties.publication_name
        operations = wanted_operations(capture)
        wanted = WantedPublication(
            places=frozenset(
                covered.intersection(_place(t) for t in members(captured, via_root=root))
            ),
            operations=[o for o in operations if not inserts or o in INSERTS_OPERATIONS],
            publish=INSERTS_OPERATIONS if inserts else publish,
            column=wanted_columns(capture),
            via_root=root and not inserts,
            trees=frozenset(
                _place(t) for t in captured if (t.partition or t.partitioned) and not inserts
            ),
        )
        found = shortfalls(self._catalogue, name, wanted, self._version_num)
        plan.shortfalls += [(name, shortfall) for shortfall in found]
        entry = self._context.belongings.find(*self._belonging(name).place)
        managed = self._properties.publication_autocreate_mode == "disabled"
        if not found or entry is None or not entry.made or managed:
            return
        plan.mended.add(name)
        for shortfall in found:
            plan.statements += shortfall.statements
            plan.unsent |= shortfall.places

    def narrowed(self) -> dict[tuple[str, str], PublishedSubset]:
        """Return what is published of tables of which not everything is; Debezium reads all of them."""
        if not self._used or self._version_num < NARROWS or self._context.debezium:
            return {}
        try:
            names = self.names or self.plan().names
        except (PublicationMissing, IdentityMissing):  # a start says so
            return {}
        return narrowings(self._catalogue.query, names)

    def _dropped(self, entry: OwnedObject) -> bool:
        """Tell whether the pipeline made this publication, and somebody dropped it."""
        if self._context.belongings.find(*entry.place) is None:
            return False
        return published(self._catalogue, entry.name) is None

    def gone(self) -> PublicationGone | None:
        """Return why the slot that is there cannot be read: its first change is from before the
        publication was made, or after it was dropped; None when it can, or that takes long to find out.

        Nothing is taken from the slot: it is asked for its first change, where the publication is
        missing, or no older than what the slot can decode.
        """
        if not self._used or self._version_num >= SKIPS_MISSING:
            return None
        if not self._asked:
            gone = self._first_change()
            self._asked, self._gone = True, gone and self.meant(gone)
        return self._gone

    def meant(self, error: PublicationGone) -> PublicationGone:
        """Return ``error``; where the pipeline had the publication, that it was dropped. Else the profile
        may name another one than before, and nothing is lost."""
        name = self._properties.publication_name
        known = self._context.belongings.find(*self._belonging(name).place) is not None
        if type(error) is PublicationGone and known:
            return PublicationDropped(error.problem, **error.fields)
        return error

    def _first_change(self) -> PublicationGone | None:
        slot, name = self._properties.slot_name, self._properties.publication_name
        if not self._catalogue.query(
            "SELECT 1 FROM pg_replication_slots s LEFT JOIN pg_publication p ON p.pubname = %s"
            " WHERE s.slot_name = %s AND s.active_pid IS NULL AND s.database = current_database()"
            " AND s.plugin = %s AND (p.oid IS NULL OR age(p.xmin) <= age(s.catalog_xmin))",
            (name, slot, self._context.decoder.output_plugin),
        ):
            return None
        try:
            with self._connection.transaction():
                self._connection.execute(f"SET LOCAL statement_timeout = '{PEEK_S}s'".encode())
                self._connection.execute(
                    "SELECT 1 FROM pg_logical_slot_peek_binary_changes(%s, NULL, 1,"
                    " 'proto_version', '1', 'publication_names', %s) LIMIT 1",
                    (slot, identifier(name)),
                )
        except psycopg.Error as error:
            if error.sqlstate is None:
                raise driver_error(error, self._properties) from error
            text = str(error.diag.message_primary)
            facts = identify(self._properties)
            meaning = self._properties.meanings.of_stream(error.sqlstate, text, **facts)
            return meaning if isinstance(meaning, PublicationGone) else None
        return None

    def statements(self, *, new_slot: bool = False) -> list[str]:
        """Return what `make` would run. Raises: SourceError, OffsetError."""
        return self.plan(new_slot=new_slot).statements if self._used else []

    def make(self, *, new_slot: bool = False) -> None:
        """Make or adjust them where the decoder uses any. Raises: SourceError, OffsetError."""
        if not self._used:
            return
        plan = self.plan(new_slot=new_slot)
        entries = [self._belonging(name) for name in plan.created]
        again = {e.name for e in entries if self._context.belongings.find(*e.place) is not None}
        with self._context.belongings.making(*entries):
            plan.run(self._connection, self._properties)
        self.names = plan.names
        self._made = [name for name in plan.created if name not in again]
        self._context.made.publications.update(plan.created)

    def begun(self, *, slot_created: bool) -> None:
        """The slot is there, and will be streamed: note from when on it streams what. Raises: SourceError,
        OffsetError."""

    def wait_s(self, _place: tuple[str, str]) -> float:
        """Return for how many seconds a table is not to be read yet, since the stream does not bring what
        is written to it after that; 0 where it does. Raises: SourceError, OffsetError."""
        return 0.0

    def coverage(self) -> PublicationCompleteness:
        """Return of which tables they bring every change; nothing is known where the decoder uses none, or
        is told to leave out what was replicated into the database."""
        decoder = self._context.decoder
        options = {name.rpartition(".")[2]: value for name, value in decoder.options.items()}
        options.update(self._properties.stream_params)
        everything = options.get("origin", "any") == "any"
        if not (self._used and decoder.capabilities.truncate and everything):
            return PublicationCompleteness()
        return coverage(self._catalogue, self.names, self._captured(), self._version_num)

    def publish(self, places: Iterable[tuple[str, str]], *, wanted: bool) -> list[tuple[str, str]]:
        """Add tables to the publication that is there, or take them out; return those that were not, or
        were, in it. Raises: SourceError, OffsetError."""
        name = self._properties.publication_name
        covered = published(self._catalogue, name) if self._used else None
        if covered is None:
            return []  # the first start makes it
        named = named_in(self._catalogue, name)
        inserts = name + INSERTS_SUFFIX
        if not wanted:
            for each in (name, inserts):
                members = named_in(self._catalogue, each) & set(places)
                if members:
                    alter_membership(
                        self._connection, self._properties, each, members, wanted=False
                    )
            return [place for place in places if place in named]
        policy = self._properties.publication_keyless_tables
        new = [place for place in places if place not in covered | named]
        tables = {place: self._catalogue.table(*place) for place in new}
        keyless = [t for t in tables.values() if t is not None and not t.supports_updates]
        if policy == "refuse":
            refuse_keyless(keyless)
        apart = {_place(t) for t in keyless} if policy == "inserts" else set()
        for each, members in ((name, set(new) - apart), (inserts, apart)):
            missing = members - named_in(self._catalogue, each)
            if missing and published(self._catalogue, each) is not None:
                alter_membership(self._connection, self._properties, each, missing, wanted=True)
        return new

    def adds_tables(self) -> bool:
        """Tell whether captured tables are added to the publication by us."""
        return self._used and self._properties.publication_autocreate_mode == "filtered"

    def find(self) -> tuple[str, ...]:
        """Return `names`; those that are there already when none was made."""
        if not self.names and self._used:
            self.names = self.plan().names
        return self.names

    def cover(self, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return which of these (schema, table) are published; all where there is no publication."""
        return (
            set(places) & published_by_any(self._catalogue, self.names)
            if self.names
            else set(places)
        )

    def left_out(self, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return which of these (schema, table) no publication has; none while a publication is missing
        where the server streams nothing then, and loses nothing."""
        skips = self._version_num >= SKIPS_MISSING
        try:
            names = self.names or (self.plan().names if self._used else ())
        except (PublicationMissing, IdentityMissing):  # a start says so
            return set()
        missing = any(published(self._catalogue, name) is None for name in names)
        if not names or (missing and not skips):
            return set()
        return set(places) - published_by_any(self._catalogue, names)

    def unsent(self) -> set[tuple[str, str]]:
        """Return what `PublicationPlan.unsent` is as things stand; nothing where a start is refused."""
        if not self._used:
            return set()
        try:
            return self.plan().unsent
        except (PublicationMissing, IdentityMissing):
            return set()

    def memberships(self) -> dict[str, Membership]:
        """Return, by its OID, how each table that is captured is published: to change a row filter, a
        column list or what is published, or to take a table out and put it in again, is another."""
        if not self._used:
            return {}
        name, captures = self._properties.publication_name, self._context.captures
        found = find_memberships(self._catalogue, (name, name + INSERTS_SUFFIX), self._version_num)
        return {oid: each for oid, each in found.items() if captures(each.schema, each.name)}

    def sent_less(
        self, before: Mapping[str, Membership], now: Mapping[str, Membership]
    ) -> frozenset[str]:
        """Return the tables of which something may not have been sent between two of `memberships`."""
        found, moved, refuses_missing = set(), {}, self._version_num < SKIPS_MISSING
        for oid, was in before.items():
            each = now.get(oid, was)
            if each.sent_less(was, refuses_missing=refuses_missing):
                found.add(oid)
            elif each.by == was.by and each.file and was.file and each.file != was.file:
                moved[oid] = each
        return frozenset(found | rewritten(self._catalogue, self._connection, moved))

    def writers(self, table: str) -> frozenset[str]:
        """Return the open transactions that may have written to a table, by its OID."""
        if not self._used:
            return frozenset()
        return frozenset(row[0] for row in self._catalogue.query(WRITERS, (table,)))

    def streams_new(self, schema: str) -> bool:
        """Tell whether tables made in ``schema`` are published without being named."""
        return not self.names or streams_new(self._catalogue, self.names, schema, self._version_num)

    def undo(self) -> None:
        """Drop those that `make` made; not those that it made again: that somebody dropped them must
        be known at the next start, too."""
        self.drop(self._made)
        self._made = []

    def drop(self, names: Iterable[str]) -> None:
        """Drop these, and forget them. Raises: SourceError, OffsetError."""
        for name in sorted(names):
            try:
                self._connection.execute(f"DROP PUBLICATION IF EXISTS {identifier(name)}".encode())
            except psycopg.Error as error:
                raise driver_error(error, self._properties) from error
            self._context.made.publications.discard(name)
            self._context.belongings.forget([self._belonging(name)])


def _place(table: CatalogTable) -> tuple[str, str]:
    return table.relation.schema, table.relation.table
