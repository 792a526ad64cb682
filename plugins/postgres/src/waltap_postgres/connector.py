"""The PostgreSQL connector: checks, publication and slot, snapshot, stream."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial

import msgspec

from waltap.base.plugin_errors import part_of, usable
from waltap.changes.decode.decoder import Decoder, DecoderContext
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position, SnapshotProgress
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.errors import OffsetError, SourceError, StopRequested, WaltapError
from waltap.ports.offsets.offset import Offset, PartitionOffset
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.chunk_source import SnapshotChunk
from waltap.ports.snapshot.snapshotter import SnapshotStart
from waltap.ports.source.connector import (
    Connector,
    ConnectorContext,
    PreflightCheck,
    SetupPlan,
    StartPosition,
)
from waltap.ports.source.slot_status import SlotStatus
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue, TableId
from waltap_postgres.catalog.description import RelationDescriber
from waltap_postgres.connection import PostgresSession, connect, run_heartbeat_query, watch
from waltap_postgres.dialect import POSTGRESQL, PostgresDialect
from waltap_postgres.errors import PublicationGone, QueryFailed, SlotActive
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication_completeness import Membership, covered
from waltap_postgres.replication.slot import ReplicationSlot, session_role
from waltap_postgres.replication.stream import ReplicationStream
from waltap_postgres.replication.transport import ReplicationTransport, open_transport
from waltap_postgres.snapshot.chunk_query import PostgresChunks
from waltap_postgres.snapshot.options import SnapshotOptions
from waltap_postgres.snapshot.requested import RequestedTables
from waltap_postgres.snapshot.snapshot_reader import SnapshotReader
from waltap_postgres.snapshot.transaction import GONE
from waltap_postgres.start.preflight import COLUMN_NAMES_SQL, tables_unreadable
from waltap_postgres.start.resume_check import ResumeCheck
from waltap_postgres.start.server_checks import status_interval, wal_level_explained
from waltap_postgres.start.setup_plan import set_identities, setup_plan
from waltap_postgres.start.startup_plan import (
    StartupPlan,
    given_up,
    log_loss,
    owned_object,
    situation,
    take,
    unfit,
)
from waltap_postgres.visibility import PostgresOverlap
from waltap_postgres.waiting import pause

log = logging.getLogger(__name__)

# Reason to refuse a blocking snapshot of a table that has just joined the publication.
NOT_YET = "it joined the publication, and the stream does not bring its changes yet"

MOST_PLANS = 20
# SQLSTATEs of a plan that is out of date. Pipelines that start together may share a publication: it, or
# its table, exists by now (42710; 23505 if both create it at the same moment).
CHANGED_SINCE = GONE | {"42710", "23505"}


class PostgresConnector(Connector):
    """Capture from one database, in all roles but a partitioned source's."""

    catalogue: PostgresCatalogue

    def __init__(
        self,
        properties: PostgresProperties,
        context: ConnectorContext,
        dialect: PostgresDialect = POSTGRESQL,
    ) -> None:
        properties = properties.with_password(context.password)
        self.properties, self.context, self.dialect = properties, context, dialect
        self._plugin = context.decoder.output_plugin
        self._pause = partial(pause, stopping=context.stopping)
        self._replication: PostgresSession | None = None
        self._exported: str | None = None
        self.reconnectable = not properties.slot_temporary
        self._reading = self._made_slot = False
        # A run with a temporary slot leaves nothing on the server, also if it ends by an error.
        self._leaves_nothing = properties.slot_temporary
        self._captured: list[CatalogTable] | None = None
        self._chunks: PostgresChunks | None = None
        self._watch = watch(properties, context.stopping)
        self._connection = connect(properties, role="catalogue", watch=self._watch)
        catalogue = self.catalogue = dialect.catalogue(self._connection, properties)
        self.query, self.rows_now = catalogue.query, catalogue.rows_now
        self.wal_end = catalogue.wal_end
        self._slots = dialect.slots(catalogue)
        self._left_behind = partial(
            self._slots.left_behind, sessions=context.made.sessions, leased=context.leased
        )
        self._identity = dialect.identity(catalogue, self._replication_session)
        self._descriptions = RelationDescriber.of(catalogue, context)
        self._wait_notice = self._slots.wait_notice(properties.slot_name)
        self._publications = dialect.publications(
            catalogue,
            context,
            captured=self.captured,
            owned_object=lambda name: self._owned_object("publication", name),
        )
        self.publish, self.writers = self._publications.publish, self._publications.writers
        self.adds_tables = self._publications.adds_tables
        self._terms = SnapshotOptions(properties, context, self._publications.narrowed)
        parts = dialect.reading, dialect.planner, self._terms
        self._snapshot = SnapshotReader(context, catalogue, self._captured_of, self._watch, *parts)
        try:
            self._identity.refuse_others(context.connector_for)
            self.server = self._identity.identify()
        except BaseException:
            self.close()
            raise
        context.memory.open(f"{self.server.system_id}/{properties.dbname}")

    # --- the server's objects ------------------------------------------------------------------------

    def captured(self) -> list[CatalogTable]:
        if self._captured is None:
            self._captured = self._captured_of(self.catalogue)
        return self._captured

    def _captured_of(self, catalogue: PostgresCatalogue) -> list[CatalogTable]:
        captures = self.context.captures
        return [t for t in catalogue.tables() if captures(t.relation.schema, t.relation.table)]

    def once(self) -> AbstractContextManager[None]:
        return self.catalogue.once()

    def describe(self, relation: Relation) -> Relation:
        described = self._descriptions.describe(relation)
        self.context.announced(described)
        if self.context.memory.returns(described.oid):
            self.context.returned(described)
        return described

    def renew(self, relation: Relation) -> Relation:
        return self._descriptions.renew(relation)

    def check(self, offset: Offset | None) -> list[PreflightCheck]:
        with self.once():
            preflight = self.dialect.preflight(
                self.catalogue, self.context, self.server, self.captured()
            )
            return preflight.checks(
                lambda: self._decide(offset),
                self._publications.plan,
                lambda: self._snapshot.targets(self.captured()),
            )

    def plan(self, offset: Offset | None) -> SetupPlan:
        return setup_plan(
            self._decide(offset),
            self.captured(),
            self._snapshot_tables,
            self.check(offset),
            context=self.context,
            catalogue=self.catalogue,
            publications=self._publications,
            slots=self._slots,
        )

    def offset_at(self, position: Position) -> Offset:
        slot = self._read_slot()
        offset = self._offset(position.end_lsn, identity=slot.identity if slot else "")
        return offset.with_sole(position=position)

    def lost(self, offset: Offset) -> WaltapError | None:
        slot, plugin = self._read_slot(), self._plugin
        wrong = slot and unfit(slot, plugin=plugin, database=self.properties.dbname)
        check = self._resumption()
        lost = wrong or check.lost(check.present(offset, slot), slot)
        return lost or (None if slot is None else self._publications.gone())

    def _snapshot_tables(self) -> list[CatalogTable]:
        return [target.table for target in self._snapshot.targets(self.captured())]

    def slot(self) -> SlotStatus | None:
        slot = self._read_slot()
        return None if slot is None else slot.status(self.catalogue.wal_end(), self._slots.disk())

    def slots(self) -> list[SlotStatus]:
        wal_end = self.catalogue.wal_end()
        return [slot.status(wal_end) for slot in self._slots.all()]

    def drop_slot(self) -> bool:
        dropped = self._slots.drop(self.properties.slot_name, self.context.made.sessions)
        self.context.owned_objects.forget([self._owned_object("slot")])
        return dropped

    def owned_objects(self, offset: Offset | None) -> list[OwnedObject]:
        self._rename_owned()
        known = {entry.key: entry for entry in self.context.owned_objects.all()}
        if offset is not None and offset.sole.slot_created_lsn:
            entry = self._owned_object("slot", offset.sole.slot)
            known.setdefault(entry.key, entry)
        here = self._owned_object("", "").key[2:]
        publications = self.catalogue.query("SELECT pubname::text FROM pg_publication")
        found = {("slot", slot.name) for slot in self._slots.all()}
        found |= {("publication", name) for (name,) in publications}
        return sorted(
            entry
            for entry in known.values()
            if entry.key[2:] == here and (entry.kind, entry.name) in found
        )

    def _rename_owned(self) -> None:
        """Give the entries of a renamed database its present name."""
        owned, slot = self.context.owned_objects, self._owned_object("slot")
        for entry in owned.all():
            made = entry.key[:3] == slot.key[:3]
            if made and self._resumption().was_named(entry.database, self._read_slot()):
                former = [each for each in owned.all() if each.key[2:] == entry.key[2:]]
                owned.keep(*[msgspec.structs.replace(e, database=slot.database) for e in former])
                owned.forget(former)

    def foreign_owned_objects(self) -> list[OwnedObject]:
        here = self._owned_object("", "").key[2:]
        known = self.context.owned_objects.all()
        return [entry for entry in known if entry.made and entry.key[2:] != here]

    def drop(self, owned_object: OwnedObject) -> None:
        if owned_object.kind == "publication":
            self._publications.drop([owned_object.name])
            return
        self._slots.drop(owned_object.name)
        self.context.owned_objects.forget([owned_object])

    # --- start --------------------------------------------------------------------------------

    def prepare(self, offset: Offset | None) -> StartPosition:
        self._rename_owned()
        decision = self._decide(offset)
        snapshot, slot, lost = decision.snapshot, decision.slot, decision.lost
        if not decision.stream:
            return self._read_only_start(decision.offset, snapshot=snapshot)
        self._slots.refuse_failover()
        if snapshot:
            unreadable = tables_unreadable(self.catalogue, self._snapshot_tables())
            if unreadable is not None:
                raise unreadable
        if slot is not None:
            if decision.begun:
                self._slots.end_reader(slot)
            self._slots.await_free(self.properties.slot_name, self._pause, self._left_behind)
            # The server does not show the first change of a slot that another reads, and what the
            # reader confirmed is newer than the decision.
            if slot.active_pid is not None and not slot.temporary:
                return self.prepare(offset)
        log_loss(decision, self.properties.slot_name)
        offset = decision.offset
        if slot is not None:
            if slot.temporary:
                slot = self._read_slot()  # a temporary slot ends with its connection
            else:
                take(self.context, self._owned_object("slot"), decision, offset)
                if self.properties.slot_failover and not (slot.failover or decision.new_slot):
                    self._replication = self._replication_session()
                    self._slots.set_failover(self._replication, slot.name)
        self._make_publications(new_slot=decision.new_slot)
        completeness = self._publications.completeness()  # before the slot exists
        if self.properties.replica_identity_autoset_values:
            set_identities(self.catalogue, self.captured())
            self._captured = None
        if decision.resumes and offset is not None:
            start = self._go_on_with_snapshot(offset)
        elif slot is None or decision.new_slot:
            start = self._start_with_new_slot(slot, snapshot=snapshot, lost=lost)
        else:
            start = self._start_with_old_slot(None if lost else offset, slot, snapshot=snapshot)
            start = replace(start, lost=lost)
        self._publications.begun(slot_created=start.slot_created)
        return covered(start, completeness, offset, slot, steady=self._snapshot.steady)

    def _make_publications(self, *, new_slot: bool) -> None:
        """Create or change the publications; plan again if others change them."""
        for left in reversed(range(MOST_PLANS)):
            try:
                self._publications.make(new_slot=new_slot)
            except QueryFailed as error:
                if error.fields.get("sqlstate") not in CHANGED_SINCE or not left:
                    raise
                self._captured = None
            else:
                return

    def _decide(self, offset: Offset | None) -> StartupPlan:
        """Plan the start, and set it for the snapshot mode's answers."""
        with self.once():
            slot = self._read_slot()
            known = situation(
                self.properties,
                self.context,
                self.server,
                slot,
                offset,
                self._resumption(),
                publication_gone=self._publications.gone,
            )
            decision = self.dialect.decide(known)
            start = SnapshotStart(
                known=decision.known,
                offset=offset,
                slot=None if slot is None else slot.status(self.catalogue.wal_end()),
                exported=decision.exports,
                resumes=decision.resumes,
                query=self.catalogue.query,
            )
        self._terms.about(start)
        return decision

    def _resumption(self) -> ResumeCheck:
        return ResumeCheck(self.catalogue, self.server, self._identity.history)

    def _owned_object(self, kind: str, name: str | None = None) -> OwnedObject:
        """Return the entry of a publication or slot; the profile's slot without a name."""
        name = self.properties.slot_name if name is None else name
        return owned_object(self.properties, self.server, kind, name)

    def _read_slot(self) -> ReplicationSlot | None:
        return self._slots.read(self.properties.slot_name)

    def _start_with_new_slot(
        self, old: ReplicationSlot | None, *, snapshot: bool, lost: SourceError | OffsetError | None
    ) -> StartPosition:
        notes = []
        if old is not None:
            self._slots.drop(old.name)
            why = "the last run ended in its snapshot" if lost is None else lost.problem
            notes.append(f"slot {old.name} was dropped and created again: {why}")
        self._replication = self._replication_session()
        if snapshot:
            self._snapshot.lock(self.captured(), exported=True)
        name = self.properties.slot_name
        self.context.made.slots.add(name)
        owned = () if self.properties.slot_temporary else (self._owned_object("slot"),)
        with self.context.owned_objects.making(*owned), wal_level_explained(self.catalogue):
            made = self._slots.create(
                self._replication,
                name,
                self._plugin,
                two_phase=self.context.decoder.two_phase,
                waiting=self._while_slot_is_made,
            )
        self._made_slot = True
        self.context.made.unreadable.pop(name, None)
        self._exported = made.snapshot
        self.context.memory.start_over(table.relation for table in self.captured())
        progress = SnapshotProgress(kind="initial", lsn=made.consistent_lsn) if snapshot else None
        offset = self._offset(
            made.consistent_lsn,
            created=made.consistent_lsn,
            progress=progress,
            identity=made.identity,
        )
        return StartPosition(
            snapshot=snapshot,
            stream=True,
            offset=offset,
            notes=tuple(notes),
            slot_created=True,
            lost=lost,
        )

    def _while_slot_is_made(self, seconds: float) -> None:
        """Check for a stop and for blocking locks every half second."""
        if self.context.stopping():
            raise StopRequested
        self._snapshot.release_blocking_locks()
        self._wait_notice(seconds)

    def _start_with_old_slot(
        self, offset: Offset | None, slot: ReplicationSlot, *, snapshot: bool
    ) -> StartPosition:
        """Return the start with an existing slot.

        It exports no snapshot. So the stream drops the changes that a new snapshot already has of its
        tables.
        """
        begin = slot.confirmed_flush_lsn
        finished = None if offset is None or offset.snapshot is not None else offset
        if finished is not None:
            begin = max(begin, finished.sole.position.end_lsn)
        if not snapshot:
            if finished is not None and finished.sole.position.end_lsn >= begin:
                start = finished.with_sole(timeline=self.server.timeline)
            else:
                start = self._offset(begin, identity=slot.identity)
            known = self._restart_lsn(slot.restart_lsn, slot.identity)
            start = start.with_sole(slot_restart_lsn=known)
            return StartPosition(snapshot=False, stream=True, offset=start)
        self._snapshot.lock(self.captured(), exported=False)
        self._reading = True
        self._snapshot.begin(slot.snapshot, beside=True)
        progress = SnapshotProgress(kind="initial", lsn=begin)
        start = self._offset(begin, progress=progress, identity=slot.identity)
        return StartPosition(snapshot=True, stream=True, offset=start)

    def _restart_lsn(self, lsn: int, identity: str) -> int | msgspec.UnsetType:
        """Return the slot's restart LSN for the offset, UNSET where it proves nothing."""
        # An identity says more. A standby has other slots than its primary.
        return msgspec.UNSET if identity or self.catalogue.standby() else lsn

    def _go_on_with_snapshot(self, offset: Offset) -> StartPosition:
        notes = (self._snapshot.continue_from(self.captured(), offset.snapshot),)
        self._reading = True
        return StartPosition(snapshot=True, stream=True, offset=offset, notes=notes, resumes=True)

    def _read_only_start(self, offset: Offset | None, *, snapshot: bool) -> StartPosition:
        if offset is None or (snapshot and offset.snapshot is not None):
            # An unfinished snapshot has the position of its own rows, not of those that are read now.
            offset = self._offset(0)
        if snapshot:
            # If it breaks off, a slot that was streamed must not count as made for it.
            offset = msgspec.structs.replace(
                offset.with_sole(slot_created_lsn=0),
                snapshot=SnapshotProgress(kind="initial", lsn=0),
            )
        return StartPosition(snapshot=snapshot, stream=False, offset=offset)

    def _offset(
        self,
        end_lsn: int,
        *,
        created: int = 0,
        progress: SnapshotProgress | None = None,
        identity: str = "",
    ) -> Offset:
        partition = PartitionOffset(
            position=Position(end_lsn),
            slot=self.properties.slot_name,
            database=self.properties.dbname,
            system_id=self.server.system_id,
            timeline=self.server.timeline,
            decoder=self.context.decoder.name,
            slot_created_lsn=created,
            slot_identity=identity or msgspec.UNSET,
            slot_restart_lsn=self._restart_lsn(0, identity),
        )
        return Offset.of(partition, snapshot=progress)

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot_tables(self) -> list[str]:
        return [table.relation.name for table in self._snapshot_tables()]

    def snapshot(self, start: StartPosition) -> Iterator[SnapshotRows]:
        yield from self._snapshot.pieces(*self._begin_snapshot(), start)

    def _begin_snapshot(self) -> tuple[list[CatalogTable], Sequence[str]]:
        self._snapshot.delay(self._pause)
        if not self._reading:
            if self._exported is None:
                self._snapshot.lock(self.captured(), exported=False)
            self._snapshot.begin(self._exported)
            self._reading = True
        return self.captured(), self._publications.names

    def snapshot_ended(self, *, completed: bool) -> None:
        # While other processes read its chunks, it holds locks and keeps old rows.
        self._snapshot.close()
        self._reading, self._exported = False, None
        self._terms.after(completed=completed)

    def chunks(self, start: StartPosition) -> Sequence[SnapshotChunk]:
        return self._snapshot.chunks(*self._begin_snapshot(), start)

    # --- stream -------------------------------------------------------------------------------

    def stream(self, position: Position) -> ReplicationStream:
        self._descriptions.start(self.captured())
        decoder = self.decoder()
        options = usable(decoder.start_options(), dict, decoder, "start_options")
        for text in options.values():
            usable(text, str, decoder, "start_options")
        # As in Debezium, options of the decoder win: it relies on them.
        params = {**self.properties.stream_params, **options}
        sql = self._slots.start_sql(self.properties.slot_name, position.end_lsn, params)
        confirmed = self.context.confirmable(position.end_lsn)
        interval = status_interval(self.catalogue, self.context.status_interval_ms)
        # The offset is stored: without it the next connection must not replace the slot.
        self.context.made.slots.discard(self.properties.slot_name)
        # Last: after an error an open stream would keep the slot from the next reader.
        return self.dialect.stream(
            self._open_stream(sql, position.end_lsn),
            decoder,
            confirmed=confirmed,
            position=position.end_lsn,
            status_interval=interval,
            receive_timeout=self._watch.timeout_s,
            ended=self._ended,
            confirms=self.properties.lsn_flush_mode != "manual",
        )

    def _ended(self, error: SourceError) -> SourceError:
        return given_up(self.context, self.properties.slot_name, self._publications.meant(error))

    def _open_stream(self, sql: str, end_lsn: int) -> ReplicationTransport:
        # Another process may have taken the slot since the last look at it.
        while True:
            session = self._replication or self._replication_session()
            self._replication = None
            transport = open_transport(session)
            try:
                transport.start(sql)
                self._refuse_moved(end_lsn)
            except PublicationGone as error:
                transport.close()
                explained = self._ended(error)
                raise explained from error if explained is not error else None
            except SlotActive:
                transport.close()
                if not self.properties.slot_max_retries:
                    raise
                self._slots.await_free(self.properties.slot_name, self._pause, self._left_behind)
            except BaseException:
                transport.close()
                raise
            else:
                return transport

    def _refuse_moved(self, end_lsn: int) -> None:
        """Raise PositionGap if another reader moved the slot after the plan.

        The server passes over that without a word.
        """
        slot = self._read_slot()
        moved = None if slot is None else self._resumption().moved(end_lsn, slot)
        if moved is not None:
            raise moved

    def decoder(self) -> Decoder:
        slot = self._read_slot()
        server = replace(
            self.server,
            two_phase_slot=bool(slot and slot.two_phase),
            encoding=self._connection.info.parameter_status("server_encoding") or "UTF8",
        )
        decoder: Decoder = part_of(
            self.context.decoder.factory,
            Decoder,
            DecoderContext(
                server=server,
                catalogue=self.catalogue,
                publications=self._publications.find(),
                options=self.context.decoder.options,
                captures=self.context.captures,
                describe=self.describe,
                hide=self.context.memory.hide,
                relation_at=self._descriptions.relation_at,
                name_resolution=self._descriptions.name_resolution,
                gone=self.catalogue.gone,
                valid_until=self._descriptions.valid_until,
                forget=self._forget,
            ),
        )
        return decoder

    def _forget(self, oid: int, lsn: int) -> None:
        """Forget a dropped relation without commits after ``lsn``."""
        self._descriptions.forget(oid)
        self.context.forget(oid, lsn)

    def _replication_session(self) -> PostgresSession:
        session = PostgresSession(
            self.properties,
            role=session_role(leased=self.context.leased),
            watch=self._watch,
            replication=True,
            plugin=self._plugin,
        )
        self.context.made.sessions.add(session.pgconn.backend_pid)
        return session

    def overlap(self, offset: Offset) -> PostgresOverlap | None:
        return PostgresOverlap.parse(offset.sole.visible_in)

    def estimate(self, relation: Relation) -> int | None:
        return self._snapshot.estimates.get(relation.oid) or None

    def captured_tables(self) -> dict[str, str]:
        table_ids = self._captured_names()
        covered = self._publications.cover(table_ids.values())
        return {oid: ".".join(name) for oid, name in table_ids.items() if name in covered}

    def existing_tables(self) -> dict[str, TableId]:
        tables = self.catalogue.numbers(via_root=self.properties.publish_via_partition_root).items()
        return {str(o): name for o, name in tables if name != self.context.capture.signal_table}

    def _captured_names(self) -> dict[str, TableId]:
        """Return the captured ones of `existing_tables`, also new ones."""
        captures = self.context.captures
        return {oid: name for oid, name in self.existing_tables().items() if captures(*name)}

    def unsent(self) -> frozenset[str]:
        with self.once():
            unsent, table_ids = self._publications.unsent(), self._captured_names()
            unsent |= self._publications.left_out(table_ids.values())
        return frozenset(number for number, name in table_ids.items() if name in unsent)

    def streamed_as(self) -> dict[str, Sequence[str | None]]:
        found, system = self._publications.memberships(), self.server.system_id
        return {o: msgspec.to_builtins(m.on(system)) for o, m in found.items()}

    def streamed_otherwise(
        self, before: Mapping[str, Sequence[str | None]], now: Mapping[str, Sequence[str | None]]
    ) -> frozenset[str]:
        return self._publications.sent_less(_memberships(before), _memberships(now))

    def column_names(self) -> Sequence[tuple[str, str, str | None, str | None]]:
        return self.catalogue.query(COLUMN_NAMES_SQL)

    def check_publishable(self, tables: Sequence[TableId]) -> None:
        self._publications.check(tables)

    def streams_new(self, schema: str, table: str) -> bool:
        return self._publications.streams_new(schema)

    def read_tables(
        self, requests: Sequence[SnapshotRequest], refused: Callable[[SnapshotRequest, str], None]
    ) -> RequestedTables | None:
        ready = []
        for request in requests:
            wait_s = self._publications.wait_s((request.schema, request.table))
            if wait_s:
                refused(request, f"{NOT_YET}: ask for it again in {wait_s:.0f} s")
            else:
                ready.append(request)
        return self._snapshot.requested(ready, refused)

    def chunk_source(self, signal_table: TableId | None) -> PostgresChunks:
        self._chunks = self.dialect.chunks(
            self.catalogue, self.context, self._publications, self._watch, signal_table
        )
        return self._chunks

    def heartbeat(self) -> None:
        run_heartbeat_query(self._connection, self.properties)

    def xmin_reader(self) -> Callable[[], int | None] | None:
        if not self.properties.xmin_fetch_interval_ms:
            return None
        return partial(self._slots.xmin, self.properties.slot_name)

    # --- end ----------------------------------------------------------------------------------

    def undo(self) -> None:
        """Drop the slot and the publications that this connector created."""
        self._watch.ends()
        if self._made_slot:
            self._release()
            self.drop_slot()
            self._made_slot = False
        self._publications.undo()

    def finish(self) -> bool:
        """Drop slot and publications at a clean stop, as the profile says.

        The properties are ``slot.drop.on.stop`` and ``publication.drop.on.stop``.
        """
        self._watch.ends()
        properties = self.properties
        self._release()
        if properties.slot_drop_on_stop and not properties.slot_temporary:
            self.drop_slot()
        self._leaves_nothing = properties.slot_drop_on_stop or properties.slot_temporary
        # The offset of a dropped slot must go first, whatever becomes of the publications.
        if properties.publication_drop_on_stop and not self._leaves_nothing:
            self._publications.drop(self.context.made.publications)
        return self._leaves_nothing

    def _release(self) -> None:
        if self._replication is not None:
            self._replication.close()
            self._replication = None
        self._snapshot.close()

    def close(self) -> None:
        if self._chunks is not None:
            self._chunks.close()
        self._release()
        if self._leaves_nothing and self.properties.publication_drop_on_stop:
            try:
                self._publications.drop(self.context.made.publications)
            except (WaltapError, StopRequested) as error:
                why = str(error) or "the server did not answer in time"
                log.warning("publications that this run made stay: %s", why)
        self._connection.close()


def _memberships(texts: Mapping[str, Sequence[str | None]]) -> dict[str, Membership]:
    found = {}
    for oid, each in texts.items():
        with suppress(msgspec.ValidationError):  # an earlier version stored other fields
            found[oid] = msgspec.convert(each, Membership)
    return found
