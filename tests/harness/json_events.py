"""A server's part, played by hand: tables, the tuples a decoder gives, transactions with LSNs.

Whole workloads against the events that Debezium gave for them are in tests/differential.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.differential.normalise import Record as Event
from tests.differential.normalise import parse
from tests.harness.changelog import typed

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.capture.topic_naming import TopicNaming
from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    LogicalMessage,
    OldTuple,
    Truncate,
    Update,
)
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.tuple_image import ABSENT, Tuple
from waltap.changes.events.event import Record
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.changes.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart
from waltap.encoders.format.conversion import json_records
from waltap.encoders.format.format import Format, FormatContext
from waltap.encoders.format.record_stage import RecordStep
from waltap.encoders.json.format import JsonFormat
from waltap.encoders.json.lines import JsonLines
from waltap.encoders.json.properties import JsonProperties
from waltap_postgres.identity import REPLICA_IDENTITIES
from waltap_postgres.types import TYPE_SPECS

NOW = 1_700_000_100_123_456_789
COMMIT_TS = 1_700_000_000_123_456
BARE = {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}
IDENTITIES = {spec.letter: spec.factory for spec in REPLICA_IDENTITIES}


def column(text: str, *, in_identity: bool = False) -> Column:
    """Return the column that ``name type[(modifiers)] [not null] [default expression]`` declares."""
    declared, _, default = text.partition(" default ")
    name, type_text, *rest = declared.split(" ", 2) if declared[0] != '"' else _quoted(declared)
    return Column(
        name=name,
        **typed(type_text),
        in_identity=in_identity,
        nullable="not null" not in rest,
        default=default or None,
    )


def _quoted(declared: str) -> list[str]:
    name, _, rest = declared[1:].partition('" ')
    return [name, *rest.split(" ", 1)]


def table(
    name: str,
    *columns: str,
    key: Sequence[str] = ("id",),
    identity: str = "d",
    index: Sequence[str] = (),
) -> Relation:
    """Return a relation; ``index`` names the columns of the replica identity's index."""
    schema, _, bare = name.rpartition(".")
    held = {"f": [c.split(" ")[0] for c in columns], "d": key, "i": index}.get(identity, ())
    return Relation(
        oid=16384 + sum(name.encode()),
        schema=schema or "public",
        table=bare,
        columns=tuple(column(c, in_identity=c.split(" ")[0] in held) for c in columns),
        identity=identity,
        primary_key=tuple(key),
    )


def part(*changes: Any, **more: Any) -> TransactionPart:
    """Return a whole transaction; a change without an LSN gets the next one from 1000 on."""
    for n, change in enumerate(changes):
        change.lsn = change.lsn or 1000 + n
    fields: dict[str, Any] = {
        "xid": 7,
        "begin_lsn": 990,
        "commit_lsn": 1100,
        "commit_ts": COMMIT_TS,
        "end_lsn": 1108,
        "previous_end_lsn": 900,
    }
    return TransactionPart(**{**fields, **more}, changes=list(changes))


class Server:
    """Commits transactions. ``parts`` is what the assembler makes of them."""

    def __init__(self) -> None:
        self.parts: list[TransactionPart | SnapshotRows | Heartbeat] = []
        self._lsn, self._xid = 0x1000000, 700
        self._previous: int | None = None
        self._open: list[Change] | None = None
        self._same_lsn = False

    # --- statements -------------------------------------------------------------------------------

    def insert(self, relation: Relation, *rows: Tuple) -> None:
        self._statement([Insert(relation, 0, row) for row in rows])

    def update(self, relation: Relation, new: Tuple, old: Tuple | None = None) -> None:
        """UPDATE of one row; ``old`` is the row before it, where the server sends some of it."""
        if old is None:
            self._statement([Update(relation, 0, new)])
        else:
            kind = OldTuple.FULL if relation.identity == "f" else OldTuple.KEY
            self._statement([Update(relation, 0, new, self._sent(relation, old), kind)])

    def delete(self, relation: Relation, *rows: Tuple) -> None:
        kind = OldTuple.FULL if relation.identity == "f" else OldTuple.KEY
        self._statement([Delete(relation, 0, self._sent(relation, row), kind) for row in rows])

    def truncate(self, *relations: Relation) -> None:
        self._statement([Truncate(relations, 0)])

    def message(self, prefix: str, content: bytes, *, transactional: bool = True) -> None:
        """pg_logical_emit_message; one that is not transactional is delivered at once."""
        if transactional:
            self._statement([LogicalMessage(0, True, prefix, content)])
            return
        self._lsn += 56
        self._same_lsn = True  # the server gives the change after it the same LSN
        change = LogicalMessage(self._lsn, False, prefix, content)
        part = TransactionPart(
            xid=None,
            begin_lsn=self._lsn,
            commit_lsn=self._lsn,
            commit_ts=0,
            end_lsn=self._lsn,
            previous_end_lsn=self._previous,
            changes=[change],
        )
        self._previous = self._lsn
        self.parts.append(part)

    def begin(self) -> None:
        """Open a transaction of several statements."""
        self._open = []

    def commit(self) -> None:
        """Commit it, also without changes: the server sends its begin and commit all the same."""
        changes, self._open = self._open, None
        assert changes is not None
        self._commit(changes)

    def snapshot(self, relation: Relation, rows: list[Tuple], first: str, last: str) -> None:
        """Rows of one table, read in a snapshot."""
        self.parts.append(
            SnapshotRows(
                relation=relation,
                rows=rows,
                ts=COMMIT_TS,
                lsn=0x1000000,
                xid=700,
                first_marker=first,
                last_marker=last,
            )
        )

    # --- what happens to them ---------------------------------------------------------------------

    @staticmethod
    def _sent(relation: Relation, row: Tuple) -> Tuple:
        """Return what of ``row`` an old tuple holds."""
        if relation.identity == "f":
            return row
        return tuple(
            value if c.in_identity else ABSENT
            for value, c in zip(row, relation.columns, strict=True)
        )

    def _statement(self, changes: list[Change]) -> None:
        for change in changes:
            self._lsn += 0 if self._same_lsn else 120
            self._same_lsn = False
            change.lsn = self._lsn
        if self._open is None:
            self._commit(changes)
        else:
            self._open += changes

    def _commit(self, changes: list[Change]) -> None:
        begin = changes[0].lsn if changes else self._lsn + 8
        self._lsn += 40
        commit, end = self._lsn, self._lsn + 48
        self._lsn, self._xid = end, self._xid + 1
        self.parts.append(
            TransactionPart(
                xid=self._xid,
                begin_lsn=begin,
                commit_lsn=commit,
                commit_ts=COMMIT_TS,
                end_lsn=end,
                previous_end_lsn=self._previous,
                changes=changes,
            )
        )
        self._previous = end


def split_properties(properties: Mapping[str, str]) -> tuple[CaptureProperties, JsonProperties]:
    """Validate what of a connector's properties concerns capture and format."""
    from waltap.base.property import declarations

    found: list[dict[str, Any]] = []
    for model in (CaptureProperties, JsonProperties):
        values: dict[str, Any] = {}
        for declaration in declarations(model):
            if declaration.family is not None:
                members = {n: v for n, v in properties.items() if declaration.family.fullmatch(n)}
                values[declaration.name] = members
            elif declaration.name in properties:
                values[declaration.name] = properties[declaration.name]
        found.append(values)
    return CaptureProperties.model_validate(found[0]), JsonProperties.model_validate(found[1])


def json_format(
    properties: Mapping[str, str] | None = None, naming: TopicNaming | None = None, **more: Any
) -> JsonFormat:
    given = {"topic.prefix": "t", **(properties or {})}
    return JsonFormat(split_properties(given)[1], format_context(given, naming, **more))


def format_context(
    given: Mapping[str, str], naming: TopicNaming | None = None, **more: Any
) -> FormatContext:
    """Return what a format may know of a connector with these properties."""
    fields: dict[str, Any] = {
        "describe": lambda relation: relation,
        "identity": lambda relation: IDENTITIES[relation.identity](relation),
        "capture": CaptureRules(split_properties(given)[0], naming),
        "database": given.get("database.dbname", "shop"),
        "run_id": "11111111-2222-3333-4444-555555555555",
        "mapper": lambda options: TypeRegistry(TYPE_SPECS, options),
    }
    return FormatContext(**{**fields, **more})


def through_records(properties: Mapping[str, str]) -> Format:
    given = {"topic.prefix": "t", **properties}
    steps = [RecordStep(label="same", transform=list)]
    return json_records(split_properties(given)[1], format_context(given, record_steps=steps))


def events(records: Iterable[Record]) -> list[Event]:
    return [parse(line) for line in JsonLines().lines(records).decode().splitlines()]


def values(records: Iterable[Record]) -> list[Any]:
    """Return the payloads of the records' values."""
    out = []
    for record in records:
        value = None if record.value is None else json.loads(record.value)
        out.append(value["payload"] if value and "payload" in value else value)
    return out
