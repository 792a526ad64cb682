"""The contract of a record format, from changes to records.

A format compiles a codec per relation version, the only lookup that a row needs. The same codec
serves snapshot and stream.
"""

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from waltap.changes.decode.relation import Relation
from waltap.changes.decode.replica_identity import ReplicaIdentity
from waltap.changes.events.event import EventTransform, Record
from waltap.changes.events.plan import PLAIN, CellShape, EventContext
from waltap.changes.mapping.envelope import NEWEST, EnvelopeForm
from waltap.changes.mapping.type_mapping import TypeMapper, TypeOptions
from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart

if TYPE_CHECKING:
    from waltap.changes.capture.capture import CaptureRules
    from waltap.changes.transactions.transaction import Notification
    from waltap.encoders.format.converter import Converter
    from waltap.encoders.format.record_stage import RecordStep


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatContext:
    """Give a format the facts about its pipeline."""

    # Completes a relation from the catalogue (data types, nullability, defaults, key). The format
    # calls it once per relation version.
    describe: Callable[[Relation], Relation]
    # Returns the replica identity to read a relation with.
    identity: Callable[[Relation], ReplicaIdentity]
    capture: "CaptureRules"
    database: str
    run_id: str
    # Returns the type mapper for some options.
    mapper: Callable[[TypeOptions], TypeMapper]
    # The connector's name in events.
    connector: str = "postgresql"
    # May name a relation's topic. None: the naming strategy names it.
    choose_topic: Callable[[Relation], str | None] = lambda _relation: None
    # Gets a text about values that could not be converted, once per column of a relation version.
    warn: Callable[[str], None] = lambda _text: None
    # Returns a described relation with its current data types: the same object if they are
    # unchanged.
    renew: Callable[[Relation], Relation] = lambda relation: relation
    # Whether the decoder's protocol announces relations (`DecoderCapabilities.relation_messages`).
    announced: bool = True
    # Write a key of substitutes, as Debezium does, for an old row without the columns of
    # `message.key.columns`. Otherwise its delete has no key.
    stand_in_keys: bool = True
    # The shape of values in rows and keys.
    cell: CellShape = PLAIN
    # The form of the envelope around rows.
    envelope: EnvelopeForm = NEWEST
    # (name, transform) of events, for formats with `FormatSpec.takes_events`. They get each batch
    # before it is encoded.
    transforms: "Sequence[tuple[str, EventTransform]]" = ()
    # Transforms of records, for formats with `FormatSpec.takes_record_transforms`.
    record_steps: "Sequence[RecordStep]" = ()
    # Writes header values, for formats without a converter of their own for these.
    header: "Converter | None" = None
    # Returns whether the pipeline must stop. A wait then raises `StopRequested`.
    stopping: Callable[[], bool] = lambda: False
    # As in `ConverterContext`.
    waits_for: Callable[[str], AbstractContextManager[None]] = lambda _name: nullcontext()
    # Counts the events of transactions, for transaction metadata. The counters are stored with the
    # offset, so they are right when a transaction continues after a restart.
    order: TransactionOrder = field(default_factory=TransactionOrder)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers that name pipeline, task, connector and run."""
        values = (
            ("connectorLogicalName", self.capture.properties.topic_prefix),
            ("taskId", "0"),
            ("connectorName", self.connector),
            ("runId", self.run_id),
        )
        return tuple((f"__debezium.context.{name}", value) for name, value in values)

    def plans(self, mapper: TypeMapper) -> EventContext:
        return EventContext(
            describe=self.describe,
            identity=self.identity,
            capture=self.capture,
            mapper=mapper,
            choose_topic=self.choose_topic,
            cell=self.cell,
            stand_in_keys=self.stand_in_keys,
        )


class Format(abc.ABC):
    """Render parts of a batch to records. Single-threaded."""

    # Whether keys, values and header values are JSON text, which a line of JSON can contain.
    text: bool = True

    @abc.abstractmethod
    def render(
        self, parts: Sequence[TransactionPart | SnapshotRows | Heartbeat], now: int
    ) -> Sequence[Record]:
        """Return the records of ``parts`` in order.

        ``now`` is the clock in ns since 1970 UTC. A format that renders columns may return a
        `RecordBlock` for the rows of a `RowBlock`.

        Raises: DecodeError for a value that is not of its column's type.
        """

    def notifications(self, notices: "Sequence[Notification]", topic: str) -> list[Record]:
        """Return the records of notifications for ``topic``.

        A format without such records returns none; the sink then gets no notifications.
        """
        return []

    def writer(self, record_part: str) -> tuple[object, str]:
        """Return the object that writes a part of records, and its method, for errors."""
        return self, "render"

    def prepare(self, relation: Relation) -> None:
        """Compile the codec of ``relation`` before its first row."""

    def forget(self, oid: int) -> None:
        """Discard the codecs of a dropped relation.

        Rows that were decoded before may still follow.
        """
