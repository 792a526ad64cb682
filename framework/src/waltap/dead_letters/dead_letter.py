"""A dead letter: an event that could not be delivered, with all that is needed to try again. Sans-IO."""

import base64
import hashlib
from typing import Any

import msgspec

from waltap.dead_letters.change_form import ChangeForm, operation, table_of
from waltap.errors import WaltapError
from waltap.format.record import Record
from waltap.source.position import lsn_text

__all__ = [
    "DeadLetter",
    "EventLocation",
    "RecordForm",
    "letter_of",
    "record_form",
    "record_of",
    "row_digest",
]


class RecordForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record: each side as text where it is UTF-8, else in base64, and named so."""

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
    """Where an event stands: ``index`` among the changes of the transaction that commits at
    ``commit_lsn``, as positions count. ``row`` tells a row that a snapshot read by what it is;
    ``record`` is the place among the records of the event, or in a batch where nothing else is known."""

    commit_lsn: int
    index: int = 0
    partition: str = ""
    row: str = ""
    record: int | None = None

    def __str__(self) -> str:
        where = (
            f"a row read at {lsn_text(self.commit_lsn)}" if self.row else lsn_text(self.commit_lsn)
        )
        text = where if self.row else f"{where}, change {self.index}"
        return text if not self.partition else f"{self.partition}: {text}"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event that a sink, or the way to it, refused.

    ``id`` is made of the sink and the event's place, so that the same event is the same letter whenever
    it is refused again: ``attempts`` counts that. ``event`` is the event as the JSON format of Debezium
    writes it, with masks, None where that cannot be done either; ``record`` what the sink refused,
    ``change`` what the server sent. Times are ms since 1970 UTC; ``replayed_ms`` is when it was delivered
    after all.
    """

    id: str
    sink: str
    place: EventLocation
    table: str = ""
    op: str = ""
    code: str = ""
    reason: str = ""
    remedy: str = ""
    first_ms: int = 0
    last_ms: int = 0
    attempts: int = 1
    replayed_ms: int | None = None
    event: dict[str, Any] | None = None
    record: RecordForm | None = None
    change: ChangeForm | None = None

    @property
    def mark(self) -> str:
        """Return what tells this delivery from one after another refusal: `Batch.replays`."""
        return f"{self.id}#{self.attempts}"

    def told(self) -> dict[str, object]:
        """Return what may leave this machine: not what the server sent, which has no masks."""
        shown = msgspec.structs.replace(self, change=None)
        found: dict[str, object] = msgspec.to_builtins(shown)
        return {**found, "position": str(self.place)}


def letter_of(
    sink: str,
    place: EventLocation,
    error: WaltapError,
    now_ms: int,
    *,
    change: ChangeForm | None = None,
    record: Record | None = None,
    event: dict[str, Any] | None = None,
) -> DeadLetter:
    """Return the letter of an event that ``error`` is told of."""
    return DeadLetter(
        id=_identifier(sink, place),
        sink=sink,
        place=place,
        table="" if change is None else table_of(change),
        op="" if change is None else operation(change),
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
    """Return what tells a row that a snapshot read from others, and is the same when it is read again."""
    named = msgspec.json.encode((table_of(form), form.new))
    return hashlib.sha256(named).hexdigest()[:12]


def record_form(record: Record) -> RecordForm:
    """Return the form of a record."""
    key, key_base64 = _sides(record.key)
    value, value_base64 = _sides(record.value)
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
    """Return the record again."""
    return Record(
        form.topic,
        _bytes(form.key, form.key_base64),
        _bytes(form.value, form.value_base64),
        tuple((name, base64.b64decode(each)) for name, each in form.headers),
        form.partition,
        form.timestamp,
    )


def _identifier(sink: str, place: EventLocation) -> str:
    parts = [sink] if sink else []
    if place.partition:
        parts.append(place.partition)
    parts.append(f"{place.commit_lsn:X}")
    parts.append(place.row or str(place.index))
    text = "-".join(parts)
    return text if place.record is None else f"{text}.{place.record}"


def _sides(data: bytes | None) -> tuple[str | None, str | None]:
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
