"""The contract of a record format: batches of changes in, records out.

A format compiles a codec per relation version; rendering a batch looks nothing up per row but that
codec. The same codec serves snapshot and stream.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from waltap.decode.relation import Relation
from waltap.decode.replica_identity import ReplicaIdentity
from waltap.events import PLAIN, CellShape, EventTransform
from waltap.format.record import Record
from waltap.mapping.envelope import NEWEST, EnvelopeForm
from waltap.mapping.type_mapping import TypeMapper, TypeOptions
from waltap.transactions.order import TransactionOrder
from waltap.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart

if TYPE_CHECKING:
    from waltap.capture.capture import CaptureRules
    from waltap.format.converter import Converter
    from waltap.format.record_stage import RecordStep
    from waltap.notifications.notification import Notification

__all__ = ["Format", "FormatContext"]


def _no_topic(_relation: Relation) -> None:
    return None


def _silent(_text: str) -> None:
    return None


def _going_on() -> bool:
    return False


def _same(relation: Relation) -> Relation:
    return relation


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatContext:
    """What a format may know when it is made.

    ``describe`` completes a relation from the catalogue (data types, nullability, defaults, key);
    it is called once per relation version. ``identity`` gives the replica identity to read it with.
    ``mapper`` gives the type mapper of some modes. ``connector`` is what events call the connector.
    ``choose_topic`` may name a relation's topic (None: by the naming strategy). ``warn`` is told,
    once per column of a relation version, of values that could not be converted. ``renew`` gives a
    described relation with its data types as they are now: the same object when they are unchanged.
    ``announced``: the decoder's wire announces relations (`DecoderCapabilities.relations`). ``cell`` is
    the shape of values in rows and keys, ``envelope`` the form of what stands around rows.
    ``transforms`` are (name, transform) of events, to be called with
    each batch before it is encoded, by formats that say `FormatSpec.takes_events`. ``record_steps`` are
    transforms of records, for formats that say `FormatSpec.takes_record_transforms`. ``header``
    writes header values, for formats that have no converter of their own for these. ``stopping`` tells
    whether a stop was asked for: who waits raises `StopRequested` then. ``order`` counts the
    events of transactions, for formats that write transaction metadata: its counters are stored with the
    offset, and are right again when a transaction goes on after a restart.
    """

    describe: Callable[[Relation], Relation]
    identity: Callable[[Relation], ReplicaIdentity]
    capture: "CaptureRules"
    database: str
    run_id: str
    mapper: Callable[[TypeOptions], TypeMapper]
    connector: str = "postgresql"
    choose_topic: Callable[[Relation], str | None] = _no_topic
    warn: Callable[[str], None] = _silent
    renew: Callable[[Relation], Relation] = _same
    announced: bool = True
    cell: CellShape = PLAIN
    envelope: EnvelopeForm = NEWEST
    transforms: "Sequence[tuple[str, EventTransform]]" = ()
    record_steps: "Sequence[RecordStep]" = ()
    header: "Converter | None" = None
    stopping: Callable[[], bool] = _going_on
    order: TransactionOrder = field(default_factory=TransactionOrder)


class Format(abc.ABC):
    """Renders parts of a batch to records. Single-threaded.

    ``text``: keys, values and header values are JSON text, which can stand in a line of JSON.
    """

    text: bool = True

    @abc.abstractmethod
    def render(
        self, parts: list[TransactionPart | SnapshotRows | Heartbeat], now: int
    ) -> Sequence[Record]:
        """Return the records of ``parts``, in order; ``now`` is the clock in ns since 1970 UTC. A format
        that knows columns may return those of rows that came as a `RowBlock` as a `RecordBlock`.

        Raises: DecodeError for a value that is not of its column's type.
        """

    def notifications(self, told: "Sequence[Notification]", topic: str) -> list[Record]:
        """Return records of notifications for ``topic``, in order; a format that has none leaves them out,
        and a profile that wants them in the sink gets nothing."""
        return []

    def prepare(self, relation: Relation) -> None:
        """Make what records of ``relation`` need, before there are any; for whoever looks into it."""

    def forget(self, oid: int) -> None:
        """Drop what is kept of a relation that is gone; what still comes of it comes in rows that were
        decoded before."""
