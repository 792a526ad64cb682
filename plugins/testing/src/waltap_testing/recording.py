"""Recordings: an output plugin's frames and messages as JSON lines.

A file holds one or more recordings. A line with a name starts a recording; its frames follow:

    {"recording": "insert", "options": {"include-xids": true}, "version_num": 150020}
    {"lsn": "0/16B3748", "text": "BEGIN 731", "means": [{"type": "Begin", "xid": 731}]}
    {"lsn": "0/16B3748", "hex": "42…"}

``text`` or ``hex`` is the payload. ``means`` lists the messages of the frame in the form of
`neutral`. A recording without ``means`` still serves the tests that need frames only.

Take frames from a server (`frames_of_slot`). Write ``means`` by hand, or generate it by `meant_by`
and check every line before you commit it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waltap.base.files.durable_file import private
from waltap.base.text import sql_text
from waltap.changes.decode.decoder import Decoder, Frame
from waltap.changes.decode.message import Message, OldTuple, SingleMessage, singly
from waltap.changes.decode.relation import DataType, Relation
from waltap.changes.decode.tuple_image import MissingValue
from waltap.changes.transactions.position import lsn_text, parse_lsn

Neutral = dict[str, Any]
"""A message as JSON: its type, and the fields that differ from defaults."""

# Written as text (0/16B3748), so that a reader can compare them with a server's output.
LSN_FIELDS = frozenset(
    (
        "abort_lsn",
        "commit_lsn",
        "end_lsn",
        "lsn",
        "origin_lsn",
        "prepare_end_lsn",
        "prepare_lsn",
        "rollback_end_lsn",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRecording:
    """Frames of one session, in order, from its start."""

    name: str
    frames: tuple[Frame, ...]
    # A list of messages for each frame; None when the file has none.
    means: tuple[list[Neutral], ...] | None = None
    # The decoder's properties of the recorded session, by name.
    options: Mapping[str, object] = field(default_factory=dict)
    # The server's version, as ``server_version_num``.
    version_num: int = 0


class StaticCatalogue:
    """A catalogue that never changes.

    For decoders whose messages do not describe relations.
    """

    def __init__(self, relations: Iterable[Relation] = (), types: Iterable[DataType] = ()) -> None:
        self._relations = {(r.schema, r.table): r for r in relations}
        self._types = {data_type.oid: data_type for data_type in types}

    def relation(self, schema: str, table: str) -> Relation | None:
        return self._relations.get((schema, table))

    def data_type(self, oid: int) -> DataType | None:
        return self._types.get(oid)

    def is_materialized_view(self, schema: str, table: str, xid: int, *, was_table: bool) -> bool:
        """Return False: recordings hold no rows of materialized views."""
        return False


def neutral(messages: Iterable[Message], shapes: "RelationShapes | None" = None) -> list[Neutral]:
    """Return ``messages`` in a form that compares, prints and is stored.

    Relations become ``schema.table#n``, where n counts the different shapes. The message with a
    new shape has its columns under ``defines``. Adjacent `Skipped` messages become one. Pass the
    same ``shapes`` to several calls to continue counting.
    """
    shapes = shapes or RelationShapes()
    found: list[Neutral] = []
    # The grouping of frames and rows is no property of a decoder.
    for message in singly(messages):
        item = shapes.message(message)
        run = found and (found[-1]["type"], found[-1].get("xid")) == ("Skipped", item.get("xid"))
        if item["type"] == "Skipped" and run:
            found[-1]["count"] += item["count"]
        else:
            found.append(item)
    return found


def meant_by(decoder: Decoder, frames: Sequence[Frame]) -> tuple[list[Neutral], ...]:
    """Return each frame's messages, a first draft of ``means``."""
    shapes = RelationShapes()
    return tuple(neutral(decoder.feed([frame]), shapes) for frame in frames)


def load_recordings(path: Path) -> list[FrameRecording]:
    """Read a file of recordings.

    Raises: ValueError with the number of the invalid line.
    """
    # The line with the name, and the frames with their meanings behind it.
    found: list[tuple[dict[str, Any], list[tuple[Frame, list[Neutral] | None]]]] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            item = json.loads(line)
            if "recording" in item:
                found.append((item, []))
            elif not found:
                raise ValueError("a frame before any line that names a recording")  # noqa: TRY301
            else:
                payload = item["text"].encode() if "text" in item else bytes.fromhex(item["hex"])
                found[-1][1].append(((parse_lsn(item["lsn"]), payload), item.get("means")))
        except (ValueError, KeyError, TypeError) as cause:
            raise ValueError(
                f"{path.name}, line {number}: not a line of a recording: {cause}"
            ) from cause
    return [
        FrameRecording(
            name=head["recording"],
            frames=tuple(frame for frame, _ in frames),
            means=tuple(means or [] for _, means in frames)
            if any(means is not None for _, means in frames)
            else None,
            options=head.get("options", {}),
            version_num=head.get("version_num", 0),
        )
        for head, frames in found
    ]


def save_recordings(path: Path, recordings: Iterable[FrameRecording]) -> None:
    """Write ``recordings``; payloads of printable UTF-8 are stored as text."""
    lines: list[str] = []
    for recording in recordings:
        head: dict[str, object] = {"recording": recording.name}
        if recording.options:
            head["options"] = dict(recording.options)
        if recording.version_num:
            head["version_num"] = recording.version_num
        lines.append(json.dumps(head, ensure_ascii=False))
        for number, (lsn, payload) in enumerate(recording.frames):
            frame: dict[str, object] = {"lsn": lsn_text(lsn), **_payload(payload)}
            if recording.means is not None and recording.means[number]:
                frame["means"] = recording.means[number]
            lines.append(json.dumps(frame, ensure_ascii=False))
    # Frames of a real server can hold private data: only the owner may read the file.
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.writelines(f"{line}\n" for line in lines)


def frames_of_slot(
    execute: Callable[[str], Iterable[tuple[str, bytes]]], slot: str, options: Mapping[str, str]
) -> tuple[Frame, ...]:
    """Return the frames of a slot without consuming them.

    ``execute`` runs SQL and returns rows of (text, bytes); with psycopg: ``lambda sql:
    connection.execute(sql)``. The query uses ``pg_logical_slot_peek_binary_changes``, whose
    payloads are as in the replication protocol.
    """
    arguments = "".join(f", {sql_text(k)}, {sql_text(v)}" for k, v in options.items())
    sql = (
        "SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes("
        f"{sql_text(slot)}, NULL, NULL{arguments})"
    )
    return tuple((parse_lsn(lsn), bytes(data)) for lsn, data in execute(sql))


class RelationShapes:
    """Readable names for relations: one per shape, not per object."""

    def __init__(self) -> None:
        self._by_relation: dict[Relation, str] = {}
        self._by_shape: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._new: Neutral = {}

    def message(self, message: SingleMessage) -> Neutral:
        kind = type(message)
        # msgspec lists defaults for the last fields only; the fields before them are always
        # written.
        given = kind.__struct_defaults__
        required = len(kind.__struct_fields__) - len(given)
        found: Neutral = {"type": kind.__name__}
        for number, name in enumerate(kind.__struct_fields__):
            value = getattr(message, name)
            if number < required or value != given[number - required]:
                found[name] = self._value(name, value)
        if self._new:
            found["defines"], self._new = self._new, {}
        return found

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, Relation):
            return self._name(value)
        if name == "relations":
            return [self._name(relation) for relation in value]
        if name in LSN_FIELDS:
            return lsn_text(value)
        return [_datum(item) for item in value] if isinstance(value, tuple) else _datum(value)

    def _name(self, relation: Relation) -> str:
        name = self._by_relation.get(relation)
        if name is None:
            columns = [[c.name, c.type_oid, c.typmod, c.in_identity] for c in relation.columns]
            shape: Neutral = {"identity": relation.identity, "columns": columns}
            text = f"{relation.name} {relation.oid} {json.dumps(shape)}"
            name = self._by_shape.get(text)
            if name is None:
                count = self._counts[relation.name] = self._counts.get(relation.name, 0) + 1
                name = self._by_shape[text] = f"{relation.name}#{count}"
                self._new[name] = shape
            self._by_relation[relation] = name
        return name


def _datum(value: Any) -> Any:
    # The content of a logical message.
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, MissingValue):
        return {"missing": value.value}
    return value.value if isinstance(value, OldTuple) else value


def _payload(payload: bytes) -> dict[str, str]:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return {"hex": payload.hex()}
    return {"text": text} if text.isprintable() or "\n" in text else {"hex": payload.hex()}
