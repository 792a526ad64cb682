"""The contract of a converter, from Connect values to bytes.

Keys, values and header values may each have their own converter.
`waltap.encoders.format.converted` makes the records that they write.
"""

import abc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.events.event import Header
from waltap.changes.events.shape import TableShape
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap.encoders.format.record_transform import ConnectHeader
from waltap.errors import RecordError, RetryVerdict

Out = TypeVar("Out")


class SchemaMismatch(ValueError):
    """A value does not fit its schema.

    The text names fields and types, never a value. ``way`` says what helps, where the usual does not.
    """

    def __init__(self, text: str, *, way: str = "") -> None:
        super().__init__(text)
        self.way = way


def refusing_null(write: Callable[[Any], Out], what: str, schema: Schema) -> Callable[[Any], Out]:
    """Return ``write`` with SchemaMismatch for null, of a required field."""

    def strict(value: Any) -> Out:
        if value is None:
            raise SchemaMismatch(f"{what} is required ({schema.kind.value}) and null")
        return write(value)

    return strict


@dataclass(slots=True, kw_only=True, eq=False)
class EventFrame:
    """Hold the data that the events of one part share."""

    part: TransactionPart | SnapshotRows
    # The source block without the members of a single event.
    source: dict[str, Any]
    # The creation time in ms, µs and ns.
    stamps: dict[str, int]
    # None where no transaction metadata is written.
    order: TransactionOrder | None
    # The list that gets the records.
    out: list[Any]

    @property
    def ts(self) -> int:
        """Return the commit or read time in µs since 1970 UTC."""
        part = self.part
        return part.ts if isinstance(part, SnapshotRows) else part.commit_ts

    def source_of(self, schema: str, table: str, lsn: int | None) -> dict[str, Any]:
        """Return the source block of an event."""
        source = {**self.source, "schema": schema, "table": table, "lsn": lsn}
        # A streamed event adds its own LSN; snapshot rows have a complete sequence.
        if source["sequence"][-1] == ",":
            source["sequence"] += f'"{lsn}"]'
        return source

    def block(self, lsn: int | None, collection: str) -> dict[str, Any] | None:
        """Count an event and return its transaction block."""
        if self.order is None:
            return None
        total, order = self.order.next(collection)
        assert isinstance(self.part, TransactionPart)
        return {
            "id": f"{self.part.xid}:{lsn}",
            "total_order": total,
            "data_collection_order": order,
        }


RecordPart = Literal["key", "value", "header"]
Encode = Callable[[Any], bytes | None]
# A value and its record's headers → bytes, and headers to add.
EncodeHeaded = Callable[[Any, tuple[ConnectHeader, ...]], tuple[bytes | None, tuple[Header, ...]]]


class ValueUnfit(RecordError):
    """The format cannot write a null or out-of-range value.

    The null is in a required field.
    """

    code = "WT-3301"
    retry = RetryVerdict.NEVER
    remedy = (
        "The batch was not delivered and the position not moved. {way}, or another "
        "{record_part}.converter."
    )


# What helps with most values that a format cannot write.
USUAL_WAY = (
    "A column mode that has a form for such values may help (decimal.handling.mode=string for NaN and "
    "infinity)"
)


def value_unfit(cause: Exception, what: str, *, record_part: str) -> ValueUnfit:
    """Return the error of an encoder's misfit, without values.

    The text names fields and types only.
    """
    text, way = type(cause).__name__, ""
    if isinstance(cause, SchemaMismatch):
        text, way = str(cause), cause.way
    return ValueUnfit(
        f"{what} cannot be written: {text}", record_part=record_part, way=way or USUAL_WAY
    )


# Images → keys. Raises one of MISFITS for an image that does not fit; then `Converter.encoder`
# writes the keys.
WriteKeys = Callable[[Sequence[Tuple]], list[bytes]]


# Keys and values of rows. Keys None: `Converter.keys` must write them.
Written = tuple[list[bytes] | None, list[bytes]]


class WriteCreates(Protocol):
    """Write values directly from row images, perhaps with their keys.

    ``op`` is c, u or r. ``lsns`` has an LSN for each image, None where the source block has none. Raises
    the same errors as `WriteKeys`.
    """

    def __call__(
        self, images: Sequence[Tuple], lsns: Sequence[int | None], op: str, frame: EventFrame
    ) -> Written: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConverterContext:
    """Give a converter the facts about its pipeline."""

    # The part of records that the converter writes.
    record_part: RecordPart
    topic_prefix: str = ""
    warn: Callable[[str], None] = lambda _text: None
    # Returns whether the pipeline must stop. A wait then ends with `StopRequested`.
    stopping: Callable[[], bool] = lambda: False
    # Names another server while its block waits for it, such as a registry by its URL without login.
    waits_for: Callable[[str], AbstractContextManager[None]] = lambda _name: nullcontext()


class Converter(abc.ABC):
    """Write keys, values or headers. Single-threaded."""

    # Whether the bytes are JSON text.
    text: bool = False

    @abc.abstractmethod
    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        """Return the encoder of values of ``schema`` for ``topic``.

        The format calls this once for each schema and topic. With ``schema`` None the values have no
        schema; a null value is a tombstone then, which no encoder gets. The encoder raises ValueError,
        TypeError or KeyError for a value that does not match the schema. It replaces null by the
        schema's default if the converter is configured so. It may query a registry, now or at its
        first value.

        Raises: WaltapError.
        """

    def keys(self, shape: TableShape, *, read: bool) -> "WriteKeys | None":
        """Return the direct writer of a relation version's keys.

        It writes the bytes of `encoder` from row images. None means that it would not be faster.
        ``read`` means snapshot rows.
        """
        return None

    def creates(
        self, shape: TableShape, value: Schema, key: "Converter", *, read: bool
    ) -> "WriteCreates | None":
        """Return the direct writer of values that have only ``after``.

        It writes the bytes of `encoder` from row images. None means that it would not be faster.
        ``value`` is the schema of values. ``key`` writes keys; a converter that knows it may write the
        keys in the same step, where records have keys.
        """
        return None

    def headed(self, topic: str, schema: Schema | None) -> EncodeHeaded | None:
        """Return the encoder of values that reads or adds headers.

        Added ones precede the record's own headers. None means that `encoder` writes the values.
        """
        return None
