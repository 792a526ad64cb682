"""Represent a refused event so that it can be redelivered. Sans-IO."""

import base64
import enum
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    LogicalMessage,
    OldTuple,
    Truncate,
    Update,
)
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import MissingValue, Tuple
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import lsn_text
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap.errors import RecordError, WaltapError

if TYPE_CHECKING:
    from waltap.changes.capture.properties import CaptureProperties
    from waltap.config.pipeline_properties import EngineProperties


Form = dict[str, Any] | str | None


class ChangeForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change as JSON: the message, and the table's definition at that time.

    A value is the server's text, null, or ``{"missing": …}``.
    """

    # insert, update, delete, truncate, message or row
    kind: str
    # tables as the server described them; a TRUNCATE can have several
    relations: list[Relation] = []
    lsn: int = 0
    new: list[Form] = []
    old: list[Form] = []
    old_kind: str = OldTuple.NONE.value
    cascade: bool = False
    restart_identity: bool = False
    prefix: str = ""
    # base64, because a message may hold any bytes
    content: str = ""
    # of a row: the time of its snapshot
    commit_ts: int = 0
    # of a row: the kind of its snapshot
    snapshot: str = ""

    @property
    def op(self) -> str:
        """Return Debezium's code for the operation."""
        codes = {"insert": "c", "update": "u", "delete": "d", "truncate": "t", "message": "m"}
        return codes.get(self.kind, "r")

    @property
    def table(self) -> str:
        """Return the names of the tables, "" for a message."""
        return ", ".join(relation.name for relation in self.relations)


def change_form(change: Change, part: TransactionPart) -> ChangeForm:
    """Return the form of a change."""
    common: dict[str, Any] = {"lsn": change.lsn, "commit_ts": part.commit_ts}
    if isinstance(change, Truncate):
        return ChangeForm(
            kind="truncate",
            relations=list(change.relations),
            cascade=change.cascade,
            restart_identity=change.restart_identity,
            **common,
        )
    if isinstance(change, LogicalMessage):
        content = base64.b64encode(change.content).decode()
        return ChangeForm(kind="message", prefix=change.prefix, content=content, **common)
    common["relations"] = [change.relation]
    if not isinstance(change, Delete):
        common["new"] = _written(change.new)
    if not isinstance(change, Insert):
        common |= {"old": _written(change.old), "old_kind": change.old_kind.value}
    return ChangeForm(kind=type(change).__name__.lower(), **common)


def row_form(rows: SnapshotRows, at: int) -> ChangeForm:
    """Return the form of one snapshot row."""
    return ChangeForm(
        kind="row",
        relations=[rows.relation],
        lsn=rows.lsn or 0,
        new=_written(rows.rows[at]),
        commit_ts=rows.ts,
        snapshot=rows.kind,
    )


def of_form(form: ChangeForm) -> Change:
    """Return the change of a form, an INSERT for a snapshot row."""
    old_kind = OldTuple(form.old_kind)
    if form.kind in {"insert", "row"}:
        return Insert(form.relations[0], form.lsn, _read(form.new))
    if form.kind == "update":
        return Update(form.relations[0], form.lsn, _read(form.new), _read(form.old), old_kind)
    if form.kind == "delete":
        return Delete(form.relations[0], form.lsn, _read(form.old), old_kind)
    if form.kind == "truncate":
        return Truncate(tuple(form.relations), form.lsn, form.cascade, form.restart_identity)
    return LogicalMessage(form.lsn, True, form.prefix, base64.b64decode(form.content))


def _written(row: Tuple) -> list[Form]:
    return [{"missing": v.name} if isinstance(v, MissingValue) else v for v in row]


def _read(row: list[Form]) -> Tuple:
    return tuple(MissingValue[v["missing"]] if isinstance(v, dict) else v for v in row)


class FailureHandling(enum.Enum):
    """The ways to handle an undeliverable event."""

    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """The handling of an event for each kind of failure."""

    # the format cannot render the change: Debezium's ``event.processing.failure.handling.mode``
    events: FailureHandling = FailureHandling.FAIL
    # a transform, converter or destination refuses the record: Kafka Connect's ``errors.tolerance``
    records: FailureHandling = FailureHandling.FAIL
    # a value cannot be converted, and the field must not become null; None: as ``events``
    values: FailureHandling | None = None

    @classmethod
    def of(
        cls,
        engine: "EngineProperties",
        capture: "CaptureProperties",
        tolerance: str | None = None,
    ) -> "FailurePolicy":
        """Return the policy of a profile.

        ``tolerance`` is the ``errors.tolerance`` of one sink.
        """
        tolerated = tolerance or engine.errors_tolerance
        records = {"none": FailureHandling.FAIL, "all": FailureHandling.WARN}.get(
            tolerated, FailureHandling.DEAD_LETTER
        )
        # as in Kafka Connect, a topic for dead letters gets the events that ``all`` tolerates
        if tolerated == "all" and engine.dead_letter_topic:
            records = FailureHandling.DEAD_LETTER
        given = engine.event_processing
        events = records if given == "tolerance" else FailureHandling(given)
        stored = capture.event_converting_failure == "dead_letter"
        values = FailureHandling.DEAD_LETTER if stored else None
        return cls(events=events, records=records, values=values)

    @property
    def tolerant(self) -> bool:
        """Return whether the pipeline may skip events and continue."""
        return self != FailurePolicy()

    def of_error(self, error: RecordError) -> FailureHandling:
        """Return the handling of an event that failed with ``error``."""
        if error.of_conversion and self.values is not None:
            return self.values
        return self.records if error.of_transform else self.events


class RecordForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record as JSON."""

    # UTF-8 is text that operators can read; other bytes are in the ``_base64`` members
    topic: str
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    headers: list[tuple[str, str]] = []
    """(name, base64)."""
    partition: int | None = None
    timestamp: int | None = None


class EventLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The location of an event in the stream or in a snapshot."""

    # of the transaction; of a row: the LSN of the snapshot
    commit_lsn: int
    # number of the change in its transaction, as positions count; of the row among equal ones
    index: int = 0
    partition: str = ""
    # digest of a snapshot row, which has no number
    row: str = ""
    # index among the event's records, or in the batch if the event is unknown
    record: int | None = None

    def __str__(self) -> str:
        lsn = lsn_text(self.commit_lsn)
        text = f"a row read at {lsn}" if self.row else f"{lsn}, change {self.index}"
        return f"{self.partition}: {text}" if self.partition else text


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event that a transform, a format or a sink refused.

    Times are ms since 1970 UTC.
    """

    # made of sink and location: an event that is refused again is the same dead letter
    id: str
    sink: str
    location: EventLocation = msgspec.field(name="place")  # as stored
    table: str = ""
    op: str = ""
    code: str = ""
    reason: str = ""
    remedy: str = ""
    first_ms: int = 0
    last_ms: int = 0
    # number of refusals
    attempts: int = 1
    # when the event was delivered after all
    redelivered_ms: int | None = msgspec.field(default=None, name="replayed_ms")  # as stored
    # the event in Debezium's JSON format, with masks; None if it cannot be rendered
    event: dict[str, Any] | None = None
    # the record that the sink refused
    record: RecordForm | None = None
    # the change that the server sent, without masks
    change: ChangeForm | None = None

    @property
    def redelivery_id(self) -> str:
        """Return the id of this delivery in `Batch.redelivers`.

        The delivery after another refusal has another id.
        """
        return f"{self.id}#{self.attempts}"

    def as_dict(self) -> dict[str, object]:
        """Return the members that may leave this machine.

        The server's change has no masks, so it stays here.
        """
        shown = msgspec.structs.replace(self, change=None)
        found: dict[str, object] = msgspec.to_builtins(shown)
        return {**found, "position": str(self.location)}


def dead_letter_of(
    sink: str,
    location: EventLocation,
    error: WaltapError,
    now_ms: int,
    *,
    change: ChangeForm | None = None,
    record: Record | None = None,
    event: dict[str, Any] | None = None,
) -> DeadLetter:
    """Return the dead letter of an event that failed with ``error``."""
    return DeadLetter(
        id=_identifier(sink, location),
        sink=sink,
        location=location,
        table="" if change is None else change.table,
        op="" if change is None else change.op,
        code=error.code,
        reason=error.problem,
        remedy=error.advice(),
        first_ms=now_ms,
        last_ms=now_ms,
        event=event,
        record=None if record is None else record_form(record),
        change=change,
    )


def row_digest(form: ChangeForm) -> str:
    """Return a digest that identifies a snapshot row.

    It is the same when another snapshot reads the same row.
    """
    named = msgspec.json.encode((form.table, form.new))
    return hashlib.sha256(named).hexdigest()[:12]


def record_form(record: Record) -> RecordForm:
    """Return the JSON form of a record."""
    key, key_base64 = _text_or_base64(record.key)
    value, value_base64 = _text_or_base64(record.value)
    return RecordForm(
        topic=record.topic,
        key=key,
        key_base64=key_base64,
        value=value,
        value_base64=value_base64,
        headers=[(name, base64.b64encode(each).decode()) for name, each in record.headers],
        partition=record.partition,
        timestamp=record.timestamp,
    )


def record_of(form: RecordForm) -> Record:
    """Return the record of a form."""
    return Record(
        form.topic,
        _bytes(form.key, form.key_base64),
        _bytes(form.value, form.value_base64),
        tuple((name, base64.b64decode(each)) for name, each in form.headers),
        form.partition,
        form.timestamp,
    )


def _identifier(sink: str, location: EventLocation) -> str:
    number = str(location.index) if location.index or not location.row else ""
    parts = sink, location.partition, f"{location.commit_lsn:X}", location.row, number
    text = "-".join(filter(None, parts))
    return text if location.record is None else f"{text}.{location.record}"


def _text_or_base64(data: bytes | None) -> tuple[str | None, str | None]:
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def _bytes(text: str | None, in_base64: str | None) -> bytes | None:
    if in_base64 is not None:
        return base64.b64decode(in_base64)
    return None if text is None else text.encode()
