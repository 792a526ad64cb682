"""The PostgreSQL connector: checks, publication and slot, snapshot, stream."""

import logging
import re
import time
from collections.abc import Iterator

import msgspec
import psycopg

from waltap.decode.decoder import Decoder, DecoderContext, ServerInfo
from waltap.decode.relation import Relation
from waltap.errors import OffsetError, SourceError
from waltap.events.transaction import SnapshotRows
from waltap.offsets.offset import Offset, SnapshotProgress
from waltap.snapshot.snapshotter import Known, Snapshotter
from waltap.source.connector import Check, Connector, ConnectorContext, SlotStatus, Start
from waltap.source.position import Position, lsn_text, parse_lsn
from waltap_postgres.catalog.catalogue import PostgresCatalogue, Table
from waltap_postgres.catalog.preflight import preflight
from waltap_postgres.connection import Session, connect, driver_error
from waltap_postgres.errors import (
    OtherServer,
    PositionGap,
    SlotActive,
    SlotInvalidated,
    SlotMissing,
    SlotUnfit,
)
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.publication import PublicationPlan, identifier, plan_publication
from waltap_postgres.replication.slot import Slot, create_slot, drop_slot, read_slot
from waltap_postgres.replication.stream import ReplicationStream, start_replication_sql
from waltap_postgres.replication.transport import open_transport
from waltap_postgres.snapshot.chunk_query import PostgresChunks
from waltap_postgres.snapshot.reader import SnapshotPoint, mark, read_table, snapshot_tables

__all__ = ["PostgresConnector"]

log = logging.getLogger(__name__)

ISOLATION = {
    "serializable": "SERIALIZABLE READ ONLY DEFERRABLE",
    "repeatable_read": "REPEATABLE READ READ ONLY",
    "read_committed": "READ COMMITTED READ ONLY",
    "read_uncommitted": "READ UNCOMMITTED READ ONLY",
}


class PostgresConnector(Connector):
    """Captures from one database of a PostgreSQL server."""

    catalogue: PostgresCatalogue

    def __init__(self, properties: PostgresProperties, context: ConnectorContext) -> None:
        self.properties, self.context = properties, context
        self._decoder_spec = context.profile.decoder
        plugin = self._decoder_spec.spec.output_plugin
        self._plugin = plugin
        self._connection = connect(properties, role="catalogue")
        self.catalogue = PostgresCatalogue(self._connection, properties)
        self._replication: Session | None = None
        self._reader: Session | None = None
        self._exported: str | None = None
        self._publications: tuple[str, ...] = ()
        self._made_publications: list[str] = []
        self._made_slot = False
        self._captured: list[Table] | None = None
        self._chunks: PostgresChunks | None = None
        self.server = self._identify()

    # --- what there is ------------------------------------------------------------------------

    def _identify(self) -> ServerInfo:
        version_num = self._connection.info.server_version
        rows = self.catalogue.query(
            "SELECT system_identifier::text, timeline_id, version()"
            " FROM pg_control_system(), pg_control_checkpoint()"
        )
        system_id, timeline, version = rows[0]
        return ServerInfo(
            version_num=version_num, version=version, system_id=system_id, timeline=timeline
        )

    def captured(self) -> list[Table]:
        """Return the tables that the profile wants, as the catalogue has them."""
        if self._captured is None:
            captures = self.context.captures
            self._captured = [
                t for t in self.catalogue.tables() if captures(t.relation.schema, t.relation.table)
            ]
        return self._captured

    def describe(self, relation: Relation) -> Relation:
        return self.catalogue.describe(relation)

    def check(self) -> list[Check]:
        return preflight(
            self.catalogue,
            self.properties,
            self.captured(),
            plugin=self._plugin,
            version_num=self.server.version_num,
        )

    def slot(self) -> SlotStatus | None:
        slot = read_slot(self.catalogue, self.properties.slot_name, self.server.version_num)
        if slot is None:
            return None
        rows = self.catalogue.query(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
            " ELSE pg_current_wal_lsn() END::text"
        )
        return SlotStatus(
            name=slot.name,
            decoder=slot.plugin,
            reader=slot.active_pid,
            restart_lsn=slot.restart_lsn,
            confirmed_lsn=slot.confirmed_flush_lsn,
            server_lsn=parse_lsn(rows[0][0]),
            wal_status=slot.wal_status,
        )

    def drop_slot(self) -> bool:
        found = read_slot(self.catalogue, self.properties.slot_name, self.server.version_num)
        drop_slot(self.catalogue, self.properties.slot_name)
        return found is not None

    # --- how to start -------------------------------------------------------------------------

    def prepare(self, offset: Offset | None) -> Start:
        slot = read_slot(self.catalogue, self.properties.slot_name, self.server.version_num)
        snapshotter = self._snapshotter()
        incomplete = offset is not None and offset.snapshot is not None
        lost = self._lost(offset, slot) if offset is not None and not incomplete else None
        known = Known(
            offset=offset is not None,
            snapshot_incomplete=incomplete,
            position_available=lost is None,
        )
        snapshot, stream = snapshotter.takes_snapshot(known), snapshotter.streams(known)
        if lost is not None and stream and not (snapshot and snapshotter.recovers_lost_position()):
            raise lost
        if not stream:
            return self._read_only_start(offset, snapshot=snapshot)
        self._publish()
        self._set_identities()
        anew = slot is None or (lost is not None and snapshot)
        if slot is not None and not anew:
            self._fits(slot)
            anew = incomplete and offset is not None and offset.slot_created_lsn > 0
        if anew:
            return self._start_with_new_slot(slot, snapshot=snapshot, lost=lost)
        assert slot is not None
        return self._start_with_old_slot(offset, slot, snapshot=snapshot)

    def _snapshotter(self) -> Snapshotter:
        component = self.context.profile.snapshotter
        return component.spec.factory(component.properties)

    def _lost(self, offset: Offset, slot: Slot | None) -> SourceError | OffsetError | None:
        """Return why streaming cannot go on from ``offset``, None when it can."""
        name, end_lsn = self.properties.slot_name, offset.position.end_lsn
        mine = (offset.system_id, offset.database, offset.slot)
        here = (self.server.system_id, self.properties.dbname, name)
        if mine != here:
            return OtherServer(
                "the stored offset belongs to system {}, database {!r}, slot {!r}; this is system {},"
                " database {!r}, slot {!r}".format(*mine, *here)
            )
        if slot is None:
            return SlotMissing(
                f"replication slot {name!r} does not exist any more, but an offset at "
                f"{lsn_text(end_lsn)} is stored",
                position=lsn_text(end_lsn),
            )
        if slot.wal_status == "lost" or not slot.restart_lsn:
            return SlotInvalidated(f"replication slot {name!r} was invalidated", slot=name)
        if self.server.timeline != offset.timeline and slot.confirmed_flush_lsn < end_lsn:
            return OtherServer(
                f"the server is on timeline {self.server.timeline}, the stored offset is of timeline "
                f"{offset.timeline} at {lsn_text(end_lsn)}, and the slot stands before it at "
                f"{lsn_text(slot.confirmed_flush_lsn)}"
            )
        strategy = self.properties.offset_mismatch_strategy
        if slot.confirmed_flush_lsn > end_lsn and strategy not in {
            "trust_slot",
            "trust_greater_lsn",
        }:
            gap = slot.confirmed_flush_lsn - end_lsn
            return PositionGap(
                f"slot {name!r} stands at {lsn_text(slot.confirmed_flush_lsn)}, {gap} bytes of WAL "
                f"after the stored offset {lsn_text(end_lsn)}: it was dropped and made anew, or moved"
            )
        return None

    def _fits(self, slot: Slot) -> None:
        if slot.plugin != self._plugin or slot.database != self.properties.dbname:
            raise SlotUnfit(
                f"slot {slot.name!r} belongs to database {slot.database!r} and plugin "
                f"{slot.plugin!r}; wanted are {self.properties.dbname!r} and {self._plugin!r}",
                slot=slot.name,
            )

    def _publish(self) -> None:
        """Make or adjust the publication where the decoder uses one."""
        if not self._decoder_spec.spec.capabilities.filters:
            return
        plan = self._plan()
        plan.run(self._connection, self.properties)
        self._publications = plan.names
        self._made_publications = plan.created

    def _plan(self) -> PublicationPlan:
        return plan_publication(
            self.catalogue,
            self.properties,
            self.captured(),
            operations=self._published_operations(),
            version_num=self.server.version_num,
        )

    def _published_operations(self) -> str | None:
        """Debezium limits the publication when ``skipped.operations`` is given and is not none."""
        capture = self.context.profile.capture
        skipped = set(capture.skipped_operations)
        if "skipped_operations" not in capture.model_fields_set or skipped == {"none"}:
            return None
        named = {"c": "insert", "u": "update", "d": "delete", "t": "truncate"}
        return ",".join(word for letter, word in named.items() if letter not in skipped)

    def _set_identities(self) -> None:
        """Apply ``replica.identity.autoset.values`` to captured tables that differ."""
        for entry in self.properties.replica_identity_autoset_values:
            pattern, _, value = entry.rpartition(":")
            for table in self.captured():
                if not re.fullmatch(pattern, table.relation.name, re.IGNORECASE):
                    continue
                self._set_identity(table, value.strip())
        if self.properties.replica_identity_autoset_values:
            self._captured = None

    def _set_identity(self, table: Table, value: str) -> None:
        word, _, index = value.partition(" ")
        if table.relation.identity == word[0].lower() and not index:
            return
        clause = f"USING INDEX {identifier(index.strip())}" if index else word.upper()
        name = identifier(table.relation.schema, table.relation.table)
        try:
            self._connection.execute(f"ALTER TABLE {name} REPLICA IDENTITY {clause}".encode())
        except psycopg.Error as error:
            raise driver_error(error, self.properties) from error

    def _start_with_new_slot(
        self, old: Slot | None, *, snapshot: bool, lost: SourceError | OffsetError | None
    ) -> Start:
        properties = self.properties
        notes = []
        if old is not None:
            drop_slot(self.catalogue, old.name)
            why = lost.problem if lost else "the last run ended in its snapshot"
            notes.append(f"slot {old.name} was dropped and made anew: {why}")
        self._replication = self._replication_session()
        made = create_slot(
            self._replication,
            properties.slot_name,
            self._plugin,
            version_num=self.server.version_num,
            temporary=properties.slot_temporary,
            failover=properties.slot_failover,
            two_phase=bool(getattr(self._decoder_spec.properties, "two_phase", False)),
        )
        self._made_slot = True
        self._exported = made.snapshot
        notes.append(f"slot {properties.slot_name} created at {lsn_text(made.consistent_lsn)}")
        progress = SnapshotProgress(kind="initial", lsn=made.consistent_lsn) if snapshot else None
        offset = self._offset(
            made.consistent_lsn, created=made.consistent_lsn, progress=progress, visible=""
        )
        return Start(
            snapshot=snapshot,
            stream=True,
            position=offset.position,
            offset=offset,
            notes=tuple(notes),
        )

    def _start_with_old_slot(self, offset: Offset | None, slot: Slot, *, snapshot: bool) -> Start:
        """Go on with a slot that exists. A snapshot beside it cannot use an exported snapshot: the
        stream leaves out, up to where the server stood, the transactions that the snapshot saw."""
        begin = slot.confirmed_flush_lsn
        if offset is not None and offset.snapshot is None:
            begin = max(begin, offset.position.end_lsn)
            if self.properties.offset_mismatch_strategy == "trust_slot":
                begin = slot.confirmed_flush_lsn
        if not snapshot:
            if offset is not None and offset.snapshot is None and offset.position.end_lsn >= begin:
                start = msgspec.structs.replace(offset, timeline=self.server.timeline)
            else:
                start = self._offset(begin, created=0, progress=None, visible="")
            return Start(snapshot=False, stream=True, position=start.position, offset=start)
        reader = self._begin_reading(None)
        seen, horizon = reader.execute(
            "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
            if self.server.version_num >= 130000
            else "SELECT txid_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
        )[0]
        start = self._offset(
            begin,
            created=0,
            progress=SnapshotProgress(kind="initial", lsn=begin),
            visible=f"{seen}@{horizon}",
        )
        return Start(snapshot=True, stream=True, position=start.position, offset=start)

    def _read_only_start(self, offset: Offset | None, *, snapshot: bool) -> Start:
        start = self._offset(
            offset.position.end_lsn if offset else 0,
            created=0,
            progress=SnapshotProgress(kind="initial", lsn=0) if snapshot else None,
            visible="",
        )
        return Start(snapshot=snapshot, stream=False, position=start.position, offset=start)

    def _offset(
        self, end_lsn: int, *, created: int, progress: SnapshotProgress | None, visible: str
    ) -> Offset:
        return Offset(
            position=Position(end_lsn),
            slot=self.properties.slot_name,
            database=self.properties.dbname,
            system_id=self.server.system_id,
            timeline=self.server.timeline,
            decoder=self._decoder_spec.spec.name,
            slot_created_lsn=created,
            snapshot=progress,
            visible=visible,
        )

    # --- snapshot -----------------------------------------------------------------------------

    def _begin_reading(self, exported: str | None) -> Session:
        """Open the reading transaction, in the exported snapshot or one of its own."""
        if self._reader is not None:
            return self._reader
        reader = Session(self.properties, role="snapshot")
        if exported is not None:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            reader.execute(f"SET TRANSACTION SNAPSHOT '{exported}'")
        else:
            mode = self.properties.snapshot_isolation_mode
            reader.execute(f"BEGIN ISOLATION LEVEL {ISOLATION[mode]}")
        self._reader = reader
        return reader

    def snapshot(self, start: Start) -> Iterator[SnapshotRows]:
        if self.properties.snapshot_delay_ms:
            time.sleep(self.properties.snapshot_delay_ms / 1000)
        reader = self._begin_reading(self._exported)
        tables = self.snapshot_tables()
        if self.properties.snapshot_locking_mode == "shared":
            self._lock(reader, tables)
        point = self._point(reader, start)
        first = tables[0].relation.name if tables else None
        pieces = (
            piece for table in tables for piece in read_table(reader, table, point, self.properties)
        )
        yield from mark(pieces, first)
        reader.execute("COMMIT")
        reader.close()
        self._reader = self._exported = None

    def snapshot_tables(self) -> list[Table]:
        """Return the tables that a snapshot reads, in order."""
        profile = self.context.profile
        tables = [
            t for t in self.captured() if t.relation.name != profile.capture.signal_data_collection
        ]
        if not profile.debezium and not self.properties.publish_via_partition_root:
            tables = [t for t in tables if not t.partitioned]
        if self.properties.publish_via_partition_root:
            tables = [t for t in tables if not t.partition]
        return snapshot_tables(tables, self.properties, profile.capture.table_include)

    def _lock(self, reader: Session, tables: list[Table]) -> None:
        reader.execute(f"SET LOCAL lock_timeout = {self.properties.snapshot_lock_timeout_ms}")
        for table in tables:
            name = identifier(table.relation.schema, table.relation.table)
            reader.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE")

    def _point(self, reader: Session, start: Start) -> SnapshotPoint:
        """Return where the reading transaction stands; a standby gives no transaction id."""
        standby = reader.execute("SELECT pg_is_in_recovery()")[0][0] == "t"
        xid = "pg_current_xact_id()" if self.server.version_num >= 130000 else "txid_current()"
        row = reader.execute(
            "SELECT (extract(epoch FROM transaction_timestamp()) * 1000000)::int8"
            + ("" if standby else f", {xid}::text, (pg_current_wal_lsn() - '0/0')::int8")
        )[0]
        lsn = start.position.end_lsn
        if self._exported is None and not standby:
            lsn = int(row[2] or 0)
        return SnapshotPoint(
            ts=int(row[0] or 0), xid=None if standby else int(row[1] or 0), lsn=lsn
        )

    # --- stream -------------------------------------------------------------------------------

    def stream(self, position: Position) -> ReplicationStream:
        decoder = self._decoder()
        options = decoder.start_options()
        for pair in (self.properties.slot_stream_params or "").split(";"):
            name, equals, value = pair.partition("=")
            if equals:
                options[name.strip()] = value.strip()
        sql = start_replication_sql(self.properties.slot_name, position.end_lsn, options)
        tries = self.properties.slot_max_retries
        while True:
            session = self._replication or self._replication_session()
            self._replication = None
            transport = open_transport(session)
            try:
                transport.start(sql)
                break
            except SlotActive:
                transport.close()
                if tries == 0 or self.context.stopping():
                    raise
                tries -= 1
                self._wait(self.properties.slot_retry_delay_ms / 1000)
            except BaseException:
                transport.close()
                raise
        return ReplicationStream(
            transport,
            decoder,
            confirmed=position.end_lsn,
            status_interval=self._status_interval(),
        )

    def _decoder(self) -> Decoder:
        spec, properties = self._decoder_spec.spec, self._decoder_spec.properties
        slot = read_slot(self.catalogue, self.properties.slot_name, self.server.version_num)
        server = ServerInfo(
            version_num=self.server.version_num,
            version=self.server.version,
            flavour=self.server.flavour,
            system_id=self.server.system_id,
            timeline=self.server.timeline,
            two_phase_slot=bool(slot and slot.two_phase),
        )
        options: dict[str, object] = dict(spec.forced_options)
        if properties is not None:
            options = {**properties.model_dump(), **options}
        if not self._publications and spec.capabilities.filters:
            self._publications = self._plan().names
        return spec.factory(
            DecoderContext(
                server=server,
                catalogue=self.catalogue,
                publications=self._publications,
                options=options,
                captures=self.context.captures,
                describe=self.describe,
            )
        )

    def _replication_session(self) -> Session:
        return Session(self.properties, role="replication", replication=True, plugin=self._plugin)

    def _status_interval(self) -> float:
        """Return how long the server may go without hearing from us, in seconds."""
        rows = self.catalogue.query(
            "SELECT setting::int8 FROM pg_settings WHERE name = 'wal_sender_timeout'"
        )
        timeout_ms = int(rows[0][0]) if rows else 60000
        wanted_ms = self.context.profile.engine.status_interval_ms
        return min(wanted_ms, timeout_ms / 3 if timeout_ms else wanted_ms) / 1000

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.context.stopping():
            time.sleep(0.1)

    def estimate(self, relation: Relation) -> int | None:
        for table in self.captured():
            if table.relation is relation:
                return table.estimate or None
        return None

    def chunk_source(self, signal_table: str, chunk_size: int) -> PostgresChunks:
        self._chunks = PostgresChunks(
            self.catalogue,
            self.properties,
            self._connection,
            self.captured(),
            signal_table,
            chunk_size,
        )
        return self._chunks

    def heartbeat(self) -> None:
        if self.properties.heartbeat_action_query is None:
            return
        try:
            self._connection.execute(self.properties.heartbeat_action_query.encode())
        except psycopg.Error as error:
            if error.sqlstate in {"57P01", "42P01"}:
                raise driver_error(error, self.properties) from error
            log.warning("heartbeat query failed", extra={"error_code": error.sqlstate})

    # --- end ----------------------------------------------------------------------------------

    def undo(self) -> None:
        """Drop the slot and the publications that this run made."""
        if self._made_slot:
            self._release()
            drop_slot(self.catalogue, self.properties.slot_name)
            self._made_slot = False
        self._drop_publications()

    def finish(self) -> None:
        """Do what a clean stop asks for: ``slot.drop.on.stop``, ``publication.drop.on.stop``."""
        self._release()
        if self.properties.slot_drop_on_stop and not self.properties.slot_temporary:
            drop_slot(self.catalogue, self.properties.slot_name)
        if self.properties.publication_drop_on_stop:
            self._drop_publications()

    def _drop_publications(self) -> None:
        for name in self._made_publications:
            self._connection.execute(f"DROP PUBLICATION IF EXISTS {identifier(name)}".encode())
        self._made_publications = []

    def _release(self) -> None:
        for session in (self._replication, self._reader):
            if session is not None:
                session.close()
        self._replication = self._reader = None

    def close(self) -> None:
        if self._chunks is not None:
            self._chunks.close()
        self._release()
        self._connection.close()
