"""Read, convert and write the offsets of Debezium's PostgreSQL connector.

The offset is a JSON object. Debezium stores LSNs of events, waltap positions in commit order:

- ``lsn_commit`` is the end of the last completely delivered transaction. Without it, ``lsn_proc`` or,
  after a snapshot, ``lsn`` precedes the end of every other transaction;
- ``lsn_proc`` of a later event belongs to the transaction that commits next, which was delivered up to
  that event. Only the stream shows the number of this change (`OffsetMap.event_lsn`).

Source: Debezium 3.6, ``PostgresOffsetContext``, ``WalPositionLocator``.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from waltap.base.files.durable_file import UNREADABLE, replace_durably
from waltap.changes.decode.relation import schema_and_table
from waltap.changes.transactions.assembly import TransactionAssembler
from waltap.changes.transactions.position import Position, lsn_text
from waltap.changes.transactions.transaction import TransactionPart
from waltap.clock import Clock, SystemClock
from waltap.config.profile import Profile
from waltap.errors import OffsetError, SourceError
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import ConnectOffsets, Offset
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.incremental_state import IncrementalState
from waltap.ports.source.connector import ChangeStream, Connector

DebeziumOffsetsUnreadable = OffsetError.define("DebeziumOffsetsUnreadable", "WT-6301")
DebeziumOffsetMissing = OffsetError.define("DebeziumOffsetMissing", "WT-6302")
DebeziumOffsetUnusable = OffsetError.define("DebeziumOffsetUnusable", "WT-6303")
# Its stored offset is not its last one.
DebeziumStillReads = OffsetError.define("DebeziumStillReads", "WT-6304")
DebeziumOffsetsUnwritable = OffsetError.define("DebeziumOffsetsUnwritable", "WT-6305")

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
            [
                {COLLECTION: each.name, CONDITION: each.condition, SURROGATE: each.surrogate_key}
                for each in state.queue
            ]
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
    location = schema_and_table(str(entry[COLLECTION]))
    if location is None:
        raise ValueError(f"{entry[COLLECTION]!r} is not schema.table")
    schema, table = location
    return SnapshotRequest(
        schema=schema,
        table=table,
        signal=identifier,
        condition=entry.get(CONDITION) or None,
        surrogate_key=entry.get(SURROGATE) or None,
    )


# Read and write a ``HashMap<byte[], byte[]>`` in Java serialization. Sans-IO.
#
# A FileOffsetBackingStore writes such a map. The reader accepts no other class, so a malicious
# file causes only an error. Source: Java Object Serialization Specification, section 6 (grammar);
# ``HashMap.writeObject``.

MAGIC: Final = b"\xac\xed\x00\x05"
NULL, REFERENCE, CLASS, OBJECT, ARRAY = 0x70, 0x71, 0x72, 0x73, 0x75
BLOCK, END_BLOCK, RESET = 0x77, 0x78, 0x79
BASE_HANDLE: Final = 0x7E0000

MAP_CLASS: Final = b"\x00\x11java.util.HashMap\x05\x07\xda\xc1\xc3\x16\x60\xd1"
MAP_FIELDS: Final = b"\x03\x00\x02F\x00\x0aloadFactorI\x00\x09threshold\x78\x70"
BYTES_CLASS: Final = b"\x00\x02[B\xac\xf3\x17\xf8\x06\x08\x54\xe0\x02\x00\x00\x78\x70"
LOAD_FACTOR: Final = b"\x3f\x40\x00\x00"
BYTES_HANDLE: Final = BASE_HANDLE + 2
"""Handles count from the map's class; the map is the second, the arrays' class the third."""

INT, BLOCK_OF_INTS = Struct(">i"), Struct(">ii")


def java_map(entries: dict[bytes, bytes]) -> bytes:
    """Return ``entries`` as Java serializes them."""
    # Java's defaults: 16 buckets, doubled beyond a load of three quarters.
    buckets = 16
    while buckets * 3 // 4 < len(entries):
        buckets *= 2
    out = bytearray(MAGIC)
    out += bytes((OBJECT, CLASS)) + MAP_CLASS + MAP_FIELDS
    out += LOAD_FACTOR + INT.pack(buckets * 3 // 4)
    out += bytes((BLOCK, BLOCK_OF_INTS.size)) + BLOCK_OF_INTS.pack(buckets, len(entries))
    known = False
    for pair in entries.items():
        for value in pair:
            out.append(ARRAY)
            # Java writes a class once and refers to it by handle afterwards.
            if known:
                out.append(REFERENCE)
                out += INT.pack(BYTES_HANDLE)
            else:
                out.append(CLASS)
                out += BYTES_CLASS
                known = True
            out += INT.pack(len(value)) + value
    out.append(END_BLOCK)
    return bytes(out)


def parse_java_map(data: bytes) -> dict[bytes, bytes]:
    """Return the entries of a serialized map, except null ones.

    Raises: ValueError, which names the unexpected content.
    """
    try:
        return _JavaMapReader(data).entries()
    except (IndexError, OverflowError) as error:
        raise ValueError("it ends early") from error


class _JavaMapReader:
    """Reads one serialized map."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        # Objects that the stream may refer to, in order: classes (None) and arrays.
        self._handles: list[bytes | None] = []

    def entries(self) -> dict[bytes, bytes]:
        self._expect(MAGIC, "it is no Java serialisation")
        self._expect(bytes((OBJECT, CLASS)), "it holds no object")
        self._expect(MAP_CLASS, "it holds another class than java.util.HashMap")
        self._expect(MAP_FIELDS, "its java.util.HashMap is of another Java")
        self._handles += [None, None]
        self._take(len(LOAD_FACTOR) + INT.size)
        self._expect(bytes((BLOCK, BLOCK_OF_INTS.size)), "its map has no size")
        _, count = BLOCK_OF_INTS.unpack(self._take(BLOCK_OF_INTS.size))
        # A damaged count must not cause a long loop.
        if not 0 <= count <= len(self._data):
            raise ValueError(f"its map has {count} entries")
        found: dict[bytes, bytes] = {}
        for _ in range(count):
            key, value = self._bytes(), self._bytes()
            if key is not None and value is not None:
                found[key] = value
        self._expect(bytes((END_BLOCK,)), "its map does not end")
        return found

    def _bytes(self) -> bytes | None:
        kind = self._take(1)[0]
        if kind == NULL:
            return None
        if kind == REFERENCE:
            return self._referred()
        if kind != ARRAY:
            raise ValueError(f"its map holds an object of kind {kind:#04x} where bytes should be")
        if self._take(1)[0] == CLASS:
            self._expect(BYTES_CLASS, "its map holds arrays of something else than bytes")
            self._handles.append(None)
        elif self._referred() is not None:
            raise ValueError("it refers to a value where a class should be")
        (size,) = INT.unpack(self._take(INT.size))
        if size < 0:
            raise ValueError(f"it holds an array of {size} bytes")
        value = self._take(size)
        self._handles.append(value)
        return value

    def _referred(self) -> bytes | None:
        handle = int(INT.unpack(self._take(INT.size))[0])
        number = handle - BASE_HANDLE
        if not 0 <= number < len(self._handles):
            raise ValueError(f"it refers to {handle:#x}, which is not there")
        return self._handles[number]

    def _expect(self, wanted: bytes, otherwise: str) -> None:
        if self._data[self._at : self._at + len(wanted)] != wanted:
            raise ValueError(otherwise)
        self._at += len(wanted)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise IndexError(end)
        part, self._at = self._data[self._at : end], end
        return part


# A key of Debezium is ``["CONNECTOR",{"server":"TOPIC_PREFIX"}]``.
class RecordKey(msgspec.Struct, frozen=True):
    """The connector's name and its topic.prefix."""

    connector: str
    server: str

    @classmethod
    def parse(cls, data: bytes) -> "RecordKey | None":
        """Return the parsed key, None for one of another kind of connector."""
        try:
            found = msgspec.json.decode(data)
        except UNREADABLE:
            return None
        if isinstance(found, dict) and "payload" in found:
            found = found["payload"]  # a converter with schemas wraps the key
        match found:
            case [str(connector), {"server": str(server)}]:
                return cls(connector, server)
        return None

    def encoded(self) -> bytes:
        """Return the key as Kafka Connect writes it."""
        return msgspec.json.encode([self.connector, {"server": self.server}])

    def __str__(self) -> str:
        return f"connector {self.connector} with topic.prefix {self.server}"


def chosen(keys: Iterable[bytes], *, server: str, connector: str | None, location: str) -> bytes:
    """Return the key of the profile's offset.

    ``connector`` is its name, None if unknown. Raises: DebeziumOffsetMissing.
    """
    known = {key: found for key in keys if (found := RecordKey.parse(key)) is not None}
    fit = [
        key
        for key, found in known.items()
        if found.server == server and connector in {None, found.connector}
    ]
    if len(fit) == 1:
        return fit[0]
    whose = f"topic.prefix {server}" + (f" and the connector {connector}" if connector else "")
    what = f"{location} has {len(fit) or 'no'} offset{'s' if fit else ''} of {whose}"
    found_text = "; ".join(sorted(map(str, known.values()))[:20]) or "no offset of a connector"
    raise DebeziumOffsetMissing(what, found=found_text)


class FileOffsets(ConnectOffsets):
    """The file of ``offset.storage.file.filename``."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        # With ``new`` the file may be missing or empty.
        self._path, self._new = path, new

    def read(self) -> Mapping[bytes, bytes]:
        try:
            data = self._path.read_bytes()
            return {} if self._new and not data else parse_java_map(data)
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError)
            if missing and self._new:
                return {}
            what = f"holds no offsets: {error}"
            if isinstance(error, OSError):
                what = "is not there" if missing else f"cannot be read: {error.strerror or error}"
            raise DebeziumOffsetsUnreadable(f"{self._path} {what}", location=self._path) from error

    def write(self, key: bytes, value: bytes) -> None:
        there = self.read()
        try:
            replace_durably(self._path, java_map({**there, key: value}))
        except OSError as error:
            what = f"{self._path} cannot be written: {error.strerror or error}"
            raise DebeziumOffsetsUnwritable(what, location=self._path) from error


def storage_at(text: str, profile: Profile, host: Host, *, new: bool = False) -> ConnectOffsets:
    """Return the storage that ``text`` names.

    ``text`` is a file's path, or a location that a plugin's ``choose_connect_offsets`` knows. With ``new``
    a file may be created.

    Raises: DebeziumOffsetsUnreadable, HookRaised, and the errors of the hook's plugin.
    """
    path, uri = Path(text), "://" in text
    # A plain name may also be a plugin's: only a path with a folder or suffix is surely a file.
    if uri or not (path.exists() or "/" in text or path.suffix):
        found: ConnectOffsets | None = host.choose(
            "choose_connect_offsets", location=text, sink=profile.sink.properties
        )
        if found is not None:
            return found
    if uri:
        raise DebeziumOffsetsUnreadable(
            f"no plugin that is installed reads {text.partition('://')[0]}://", location=text
        )
    return FileOffsets(path, new=new)


POLL_S: Final = 0.2
SILENCE_S: Final = 120.0

StreamSilent = SourceError.define("StreamSilent", "WT-2022")


def position_behind(source: Connector, there: OffsetMap, memory_bytes: int) -> Position:
    """Return the position behind the last change that Debezium has delivered.

    The change is in the transaction that commits first after ``there``; if it has no such change, the
    position is before that transaction. Several changes of one COPY may share the LSN; if the number of
    delivered ones is unknown, none counts. Raises: WaltapError.
    """
    start, event_lsn, slot = Position(there.end_lsn), there.event_lsn, source.slot()
    if event_lsn is None or slot is None:
        return start
    with closing(source.stream(start)) as stream, TemporaryDirectory(prefix="waltap-") as folder:
        assembler = TransactionAssembler(start, None, Path(folder), memory_bytes)
        with closing(assembler):
            # The stream has nothing else beyond the server's position.
            parts = _parts(stream, assembler, slot.server_lsn, SystemClock())
            return _found(parts, start, event_lsn, there.events_at_lsn)


def _found(
    parts: Iterable[TransactionPart], start: Position, event_lsn: int, events: int
) -> Position:
    commit_lsn = first = 0
    same = 0
    for part in parts:
        if part.xid is None:
            continue  # a message between transactions
        if commit_lsn and part.commit_lsn != commit_lsn:
            break
        commit_lsn = part.commit_lsn
        for index, change in zip(part.numbers(), part.changes, strict=True):
            if change.lsn != event_lsn:
                continue
            first = index if not same else first
            same += 1
        if not part.complete:
            continue
        if not same:
            break
        counted = events or int(same == 1)
        index = first + min(counted, same)
        if index == part.first_index + part.wire_count:
            return Position(part.end_lsn)
        return Position(start.end_lsn, commit_lsn, index) if index else start
    return start


def _parts(
    stream: ChangeStream, assembler: TransactionAssembler, wal_end: int, clock: Clock
) -> Iterator[TransactionPart]:
    """Yield the parts that the server sends up to ``wal_end``. Raises: StreamSilent."""
    heard = clock.monotonic()
    stream.request_keepalive()
    while True:
        backlog = assembler.backlog
        messages = [] if backlog else stream.receive(POLL_S)
        if messages or backlog:
            heard = clock.monotonic()
            yield from assembler.feed(messages)
        elif stream.idle_lsn() >= wal_end and assembler.idle:
            return
        elif clock.monotonic() - heard > SILENCE_S:
            what = f"nothing came from the slot for {SILENCE_S:.0f} s, up to {lsn_text(wal_end)}"
            raise StreamSilent(what)
        else:
            stream.request_keepalive()
