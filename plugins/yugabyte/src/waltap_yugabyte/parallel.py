"""Capture through slots, each with a table's hash range.

Each range has its own slot and publication, is read as of its slot's time, and streams by itself.
The pipeline has one position per slot (`waltap.ports.offsets.offset.Offset`), under the slot's name.

Source: YugabyteDB documentation, parallel streaming; Debezium's connector for YugabyteDB,
``YBValidate.java`` and ``PostgresConnectorTask.java``.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing

from waltap.base.text import sql_name
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.errors import SourceError, WaltapError
from waltap.ports.offsets.offset import Offset
from waltap.ports.offsets.owned_objects import OwnedObject
from waltap.ports.source.connector import (
    ChangeStream,
    Connector,
    ConnectorContext,
    PreflightCheck,
    StartPosition,
)
from waltap.ports.source.roles import PartitionedSource
from waltap.ports.source.slot_status import SlotStatus
from waltap_postgres.connector import PostgresConnector
from waltap_yugabyte.chunks import hash_condition
from waltap_yugabyte.dialect import YUGABYTEDB
from waltap_yugabyte.properties import YugabyteProperties

OneTableOnly = SourceError.define("OneTableOnly", "WT-2157")


class RangedConnector(Connector, PartitionedSource):
    """Capture one table by one connector per range.

    The first one answers all questions that concern no range.
    """

    def __init__(self, properties: YugabyteProperties, context: ConnectorContext) -> None:
        self.properties, self.context = properties, context
        self._parts: dict[str, PostgresConnector] = {}
        self._starts: dict[str, StartPosition] = {}
        merges = properties.streaming_order == "hybrid_time"
        self.merges_within_s = properties.merge_quiet_ms / 1000 if merges else None
        rows = self._rows()
        try:
            for number, slot in enumerate(properties.slot_names):
                self._parts[slot] = self._part(number, rows[number])
        # A connector that fails to open must not leave the others' connections behind.
        except BaseException:
            self.close()
            raise
        first = self._first = next(iter(self._parts.values()))
        self.server, self.catalogue = first.server, first.catalogue
        self.query, self.decoder, self.column_names = first.query, first.decoder, first.column_names
        self.captured_tables, self.existing_tables = first.captured_tables, first.existing_tables
        self.estimate, self.slots, self.drop = first.estimate, first.slots, first.drop
        self.foreign_owned_objects = first.foreign_owned_objects
        self.snapshot_tables = first.snapshot_tables
        self.heartbeat, self.rows_now = first.heartbeat, first.rows_now

    def _part(self, number: int, reads: Mapping[str, object]) -> PostgresConnector:
        own = {
            "slot_name": self.properties.slot_names[number],
            "publication_name": self.properties.publication_names[number],
            **reads,
        }
        chosen = self.properties.model_copy(update=own)
        return PostgresConnector(chosen, self.context, YUGABYTEDB)

    def _rows(self) -> list[Mapping[str, object]]:
        """Return, for each range, properties that select its rows.

        Raises: OneTableOnly, SourceError.
        """
        with closing(self._part(0, {})) as probe:
            tables = [table.relation for table in probe.captured()]
        if len(tables) != 1:
            names = ", ".join(table.name for table in tables) or "none"
            raise OneTableOnly(f"streaming.mode=parallel takes one table; captured are {names}")
        (table,) = tables
        given = self.properties.hash_columns or table.primary_key or ()
        if not given or not {column.name for column in table.columns}.issuperset(given):
            raise OneTableOnly(f"{table.name} has no key whose hash could be cut into ranges")
        source, names = sql_name(table.schema, table.table), ", ".join(map(sql_name, given))
        property_name = f"snapshot.select.statement.overrides.{table.name}"
        return [
            {
                "snapshot_select_overrides": (table.name,),
                "snapshot_select_statements": {
                    property_name: f"SELECT * FROM {source} WHERE {hash_condition(names, low, high)}"
                },
            }
            for low, high in self.properties.ranges
        ]

    # --- state --------------------------------------------------------------------------------

    def _of(self, slot: str, offset: Offset | None) -> Offset | None:
        """Return the part of ``offset`` for one slot, or None."""
        if offset is None or slot not in offset.partitions:
            return None
        return Offset.of(offset.partitions[slot], snapshot=offset.snapshot)

    def check(self, offset: Offset | None) -> list[PreflightCheck]:
        found: dict[tuple[str, str], PreflightCheck] = {}
        for slot, part in self._parts.items():
            for check in part.check(self._of(slot, offset)):
                # Checks of the server have the same result for every range: show them once.
                found.setdefault((check.name, check.found), check)
        return list(found.values())

    def lost(self, offset: Offset) -> WaltapError | None:
        for slot, part in self._parts.items():
            of_slot = self._of(slot, offset)
            why = None if of_slot is None else part.lost(of_slot)
            if why is not None:
                return why
        return None

    def describe(self, relation: Relation) -> Relation:
        return self._first.describe(relation)

    def renew(self, relation: Relation) -> Relation:
        return self._first.renew(relation)

    def slot(self) -> SlotStatus | None:
        return self._first.slot()

    def owned_objects(self, offset: Offset | None) -> list[OwnedObject]:
        every = [
            entry
            for slot, part in self._parts.items()
            for entry in part.owned_objects(self._of(slot, offset))
        ]
        return sorted({(e.kind, e.name): e for e in every}.values())

    def drop_slot(self) -> bool:
        dropped = [part.drop_slot() for part in self._parts.values()]
        return any(dropped)

    # --- start, snapshot, stream --------------------------------------------------------------

    def prepare(self, offset: Offset | None) -> StartPosition:
        """Prepare every range and combine their start positions.

        Raises: as `Connector.prepare`.
        """
        self._starts = {
            slot: part.prepare(self._of(slot, offset)) for slot, part in self._parts.items()
        }
        every = self._starts.values()
        reads = [start for start in every if start.snapshot]
        first_offset = Offset(
            partitions={slot: s.offset.sole for slot, s in self._starts.items()},
            snapshot=reads[0].offset.snapshot if reads else None,
        )
        return StartPosition(
            snapshot=bool(reads),
            stream=any(start.stream for start in every),
            offset=first_offset,
            notes=tuple(dict.fromkeys(note for start in every for note in start.notes)),
            slot_created=any(start.slot_created for start in every),
            lost=next((start.lost for start in every if start.lost is not None), None),
        )

    def snapshot(self, start: StartPosition) -> Iterator[SnapshotRows]:
        """Read range after range, each as of its slot's time."""
        for slot, part in self._parts.items():
            if self._starts[slot].snapshot:
                yield from part.snapshot(self._starts[slot])

    def streams(self, positions: Positions) -> Mapping[str, ChangeStream]:
        # If one stream fails to open, close the streams before it.
        with ExitStack() as opened:
            found: dict[str, ChangeStream] = {}
            for slot, part in self._parts.items():
                found[slot] = part.stream(positions[slot])
                opened.callback(found[slot].close)
            opened.pop_all()
            return found

    def stream(self, position: Position) -> ChangeStream:
        return self._first.stream(position)

    # --- end ----------------------------------------------------------------------------------

    def undo(self) -> None:
        for part in self._parts.values():
            part.undo()

    def finish(self) -> bool:
        finished = [part.finish() for part in self._parts.values()]
        return all(finished)

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
