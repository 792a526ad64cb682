"""Convert the offset of Debezium's PostgreSQL connector. Sans-IO.

The offset is a JSON object. Debezium stores LSNs of events, waltap positions in commit order:

- ``lsn_commit`` is the end of the last completely delivered transaction. Without it, ``lsn_proc`` or,
  after a snapshot, ``lsn`` precedes the end of every other transaction;
- ``lsn_proc`` of a later event belongs to the transaction that commits next, which was delivered up to
  that event. Only the stream shows the number of this change (`OffsetMap.event_lsn`).

Source: Debezium 3.6, ``PostgresOffsetContext``, ``WalPositionLocator``.
"""

from typing import Any, Final

import msgspec

from waltap.base.decode_errors import UNREADABLE
from waltap.changes.decode.relation import schema_and_table
from waltap.changes.transactions.position import lsn_text
from waltap.ports.offsets.offset import Offset
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.incremental_state import IncrementalState
from waltap.services.debezium_offsets.errors import DebeziumOffsetUnusable

ROWS: Final = frozenset({"INSERT", "UPDATE", "DELETE", "TRUNCATE"})
COLLECTION: Final = "incremental_snapshot_collections_id"
CONDITION: Final = "incremental_snapshot_collections_additional_condition"
SURROGATE: Final = "incremental_snapshot_collections_surrogate_key"
COUNTS: Final = "transaction_data_collection_order_"


class OffsetMap:
    """An offset that Debezium stored."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    @classmethod
    def parse(cls, data: bytes) -> "OffsetMap":
        """Parse a stored offset. Raises: DebeziumOffsetUnusable."""
        try:
            found = msgspec.json.decode(data)
        except UNREADABLE as error:
            raise DebeziumOffsetUnusable(f"the offset is not JSON: {error}") from error
        # A converter with schemas wraps the offset.
        if isinstance(found, dict) and isinstance(found.get("payload"), dict):
            found = found["payload"]
        if not isinstance(found, dict) or not isinstance(found.get("lsn"), int):
            raise DebeziumOffsetUnusable(
                "the offset has no lsn: it is not one of Debezium's PostgreSQL connector"
            )
        return cls(found)

    def refuse_snapshot(self) -> None:
        """Refuse the offset of an unfinished snapshot, which Debezium repeats too.

        Raises: DebeziumOffsetUnusable.
        """
        kind = self._values.get("snapshot")
        if kind in (None, False, "INCREMENTAL") or self._values.get("snapshot_completed") is True:
            return
        if kind is True and self._values.get("last_snapshot_record") is True:
            return  # the form of earlier Debezium versions
        what = "a blocking snapshot" if kind == "BLOCKING" else "an initial snapshot"
        raise DebeziumOffsetUnusable(
            f"{what} had begun and not ended when the offset was stored: how far it came is not known"
        )

    @property
    def end_lsn(self) -> int:
        """Return the end of the last completely delivered transaction.

        The LSN may also lie after it and before the end of the next one. Raises: DebeziumOffsetUnusable.
        """
        for name in ("lsn_commit", "lsn_proc", "lsn"):
            value = self._values.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or not 0 < value < 1 << 64:
                raise DebeziumOffsetUnusable(f"the offset's {name} is no LSN: {value!r}")
            return value
        raise AssertionError

    @property
    def previous_end_lsn(self) -> int | None:
        """Return ``lsn_commit``, for ``source.sequence``."""
        return self._values.get("lsn_commit")

    @property
    def event_lsn(self) -> int | None:
        """Return the LSN of the last delivered change of an open transaction.

        None: every transaction was delivered completely.
        """
        lsn, kind = self._values.get("lsn_proc"), self._values.get("messageType")
        # A transaction's first change may have the LSN at which the previous one ended.
        inside = kind in ROWS or (kind == "MESSAGE" and lsn != self._values.get("lsn_commit"))
        return lsn if inside and isinstance(lsn, int) else None

    @property
    def events_at_lsn(self) -> int:
        """Return how many changes with `event_lsn` were delivered.

        0: unknown, as before Debezium 3.7, which introduced the number.
        """
        number = self._values.get("lsn_events_processed", 0)
        return number if isinstance(number, int) else 0

    @property
    def collections(self) -> dict[str, int]:
        """Return the open transaction's event count of each table, if counted."""
        counts = {
            name.removeprefix(COUNTS): value
            for name, value in self._values.items()
            if name.startswith(COUNTS) and isinstance(value, int)
        }
        return counts if self._values.get("transaction_id") else {}

    @property
    def signals(self) -> dict[str, object]:
        """Return the state of incremental snapshots.

        The table in progress is read from its beginning: its rows are delivered again. Raises:
        DebeziumOffsetUnusable.
        """
        text = self._values.get("incremental_snapshot_collections")
        if not text:
            return {}
        identifier = str(self._values.get("incremental_snapshot_correlation_id") or "debezium")
        try:
            listed = msgspec.json.decode(str(text), type=list[dict[str, str | None]])
            queue = [_request(entry, identifier) for entry in listed]
        except (msgspec.MsgspecError, KeyError, ValueError) as error:
            raise DebeziumOffsetUnusable(
                f"the tables of its incremental snapshot cannot be read: {error}"
            ) from error
        state: dict[str, object] = msgspec.to_builtins(IncrementalState(queue=queue))
        return state


def of_offset(offset: Offset, *, now_us: int) -> bytes:
    """Return ``offset`` in Debezium's form.

    Debezium then streams every transaction that ends later. Raises: DebeziumOffsetUnusable.
    """
    if offset.snapshot is not None:
        raise DebeziumOffsetUnusable("an initial snapshot of waltap's has begun and not ended")
    state = IncrementalState.restored(offset.signals) if offset.signals else IncrementalState()
    if state.blocking:
        raise DebeziumOffsetUnusable("a blocking snapshot of waltap's has begun and not ended")
    end_lsn = offset.sole.position.end_lsn
    # No ``lsn_commit`` and no ``lsn_proc``, as after a snapshot. With them Debezium would look
    # for an event that it had seen itself, and could take the next transaction's first change
    # for that event.
    values: dict[str, object] = {
        "lsn": end_lsn,
        "ts_usec": now_us,
    }
    if state.queue:
        values["incremental_snapshot_collections"] = msgspec.json.encode(
            [_entry(request) for request in state.queue]
        ).decode()
        values["incremental_snapshot_correlation_id"] = state.queue[0].signal
    return msgspec.json.encode(values)


def next_start(offset: Offset) -> str:
    """Return a sentence about Debezium's next start with the offset."""
    position = offset.sole.position
    text = f"streams what commits after {lsn_text(position.end_lsn)}"
    if position.index:
        text += f"; {position.index} changes of the next transaction come again"
    return text


def _request(entry: dict[str, str | None], identifier: str) -> SnapshotRequest:
    place = schema_and_table(str(entry[COLLECTION]))
    if place is None:
        raise ValueError(f"{entry[COLLECTION]!r} is not schema.table")
    schema, table = place
    return SnapshotRequest(
        schema=schema,
        table=table,
        signal=identifier,
        condition=entry.get(CONDITION) or None,
        surrogate_key=entry.get(SURROGATE) or None,
    )


def _entry(request: SnapshotRequest) -> dict[str, str | None]:
    return {
        COLLECTION: request.name,
        CONDITION: request.condition,
        SURROGATE: request.surrogate_key,
    }
