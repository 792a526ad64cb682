"""What each property changes of what consumers get: it is held to the reach that it declares.

Each property of capture and events gets another value; the records of the JSON format, and the rows of the
change log that Spark, SQL targets and lakes share, differ from those before where its reach says so, and only
there.
"""

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.harness.changelog import context
from tests.harness.json_events import COMMIT_TS, NOW, Server, json_format, split_properties, table

from waltap.base.property import declarations
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.relation import Column, DataType, Relation, TypeKind
from waltap.changes.decode.tuple_image import UNCHANGED
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.changes.transactions.transaction import (
    Heartbeat,
    Notification,
    SnapshotRows,
    TransactionPart,
)
from waltap.plugin import register_topic_naming
from waltap_postgres.types import TYPE_SPECS
from waltap_sinks.changelog.table_version import LogRows, TableVersion

INT: Final = DataType(oid=23, schema="pg_catalog", name="int4")
TEXTS: Final = DataType(
    oid=1009,
    schema="pg_catalog",
    name="_text",
    element=DataType(oid=25, schema="pg_catalog", name="text"),
)
KINDS: Final = {
    "name": DataType(oid=19, schema="pg_catalog", name="name"),
    "money": DataType(oid=790, schema="pg_catalog", name="money"),
    "interval": DataType(oid=1186, schema="pg_catalog", name="interval"),
    "hstore": DataType(oid=60_001, schema="public", name="hstore"),
    "texts": TEXTS,
    "pair": DataType(oid=60_002, schema="public", name="pair", kind=TypeKind.COMPOSITE, attributes=(("x", INT, -1), ("y", INT, -1))),
    "strange": DataType(oid=60_003, schema="public", name="strange"),
}  # fmt: skip


def with_kinds(relation: Relation) -> Relation:
    """Return ``relation`` with a column of each of `KINDS`, and a comment on the last of its own."""
    *first, last = relation.columns
    commented = msgspec.structs.replace(last, comment="what it is")
    more = (
        Column(name=name, type_oid=kind.oid, data_type=kind, nullable=True, type_text=kind.name)
        for name, kind in KINDS.items()
    )
    return msgspec.structs.replace(relation, columns=(*first, commented, *more))


PEOPLE: Final = with_kinds(
    table(
        "people",
        "id int4 not null",
        "name-part text",
        "code varchar(20)",
        "price numeric(10,2)",
        "whole numeric",
        "at timestamp(3)",
        "day date",
        "raw bytea",
        "long text",
    )
)
SIGNALS: Final = table("signals", "id text not null", "type text", "data text")
OTHER: Final = table("tenant.other", "id int4 not null", "v text", identity="f")
BUILT_IN: Final = table("spatial_ref_sys", "id int4 not null", "v text")
ROW: Final = (
    "1", "Ann", "secret", "NaN", "12.5", "2020-01-01 00:00:00", "infinity", "\\x00ff", "long",
    "a name", "$12.30", "1 mon 2 days", '"k"=>"v"', "{{a,b},{c,d}}", "(1,2)", "odd",
)  # fmt: skip
NOTICE: Final = Notification(
    identifier="1", aggregate_type="Initial Snapshot", kind="STARTED", timestamp=1
)


def parts() -> list[TransactionPart | SnapshotRows | Heartbeat]:
    """Return what the assembler makes of one workload that has something of everything."""
    server = Server()
    server.snapshot(PEOPLE, [ROW], "first", "last")
    server.insert(PEOPLE, ROW)
    server.update(PEOPLE, (*ROW[:1], "Bob", *ROW[2:8], UNCHANGED, *ROW[9:]))
    server.update(PEOPLE, ("2", *ROW[1:]), ROW)
    server.delete(PEOPLE, ROW)
    server.insert(OTHER, ("1", "x"))
    server.update(OTHER, ("1", "x"), ("1", "x"))
    server.delete(OTHER, ("1", "x"))
    server.insert(SIGNALS, ("a", "log", "{}"))
    server.insert(BUILT_IN, ("1", "x"))
    server.message("kept", b"\x00\x01")
    server.truncate(OTHER)
    return [*server.parts, Heartbeat(ts=COMMIT_TS // 1000)]


def captured(capture: CaptureRules) -> list[Any]:
    """Return `parts` as decoders hand them on: without changes of tables that are not captured."""

    def mine(relation: Relation) -> bool:
        return capture.captures(relation.schema, relation.table)

    found: list[Any] = []
    for part in parts():
        if isinstance(part, TransactionPart):
            changes = [c for c in part.changes if all(map(mine, relations_of(c)))]
            found.append(msgspec.structs.replace(part, changes=changes))
        elif not isinstance(part, SnapshotRows) or mine(part.relation):
            found.append(part)
    return found


def relations_of(change: Any) -> tuple[Relation, ...]:
    found = getattr(change, "relations", None) or getattr(change, "relation", None)
    return found if isinstance(found, tuple) else (found,) if found is not None else ()


def strategy(properties: Mapping[str, str], settings: CaptureProperties) -> Any:
    chosen = properties.get("topic.naming.strategy", "schema")
    (spec,) = [each for each in register_topic_naming() if each.name == chosen]
    return spec.factory(settings)


def records(properties: Mapping[str, str]) -> object:
    """Return the records of the workload as JSON, or what making them raises."""
    given = {"topic.prefix": "t", **properties}
    settings = split_properties(given)[0]
    naming = strategy(given, settings)
    made = json_format(given, naming)
    topic = settings.notification_topic
    try:
        return [
            *made.render(captured(CaptureRules(settings, naming)), NOW),
            *(made.notifications([NOTICE], topic) if topic else ()),
        ]
    except Exception as error:
        return repr(error)


def rows(properties: Mapping[str, str]) -> object:
    """Return the columns and rows that the change log has of the workload, or what making them raises."""
    given = {"topic.prefix": "t", **properties}
    settings = split_properties(given)[0]
    capture = CaptureRules(settings, strategy(given, settings))
    types = TypeRegistry(TYPE_SPECS, capture.types)
    known = dataclasses.replace(context(Path()), types=types, capture=capture)
    versions: dict[int, TableVersion] = {}
    found: list[object] = []
    try:
        for part in captured(capture):
            for relation, tuples, changes in pieces(part):
                version = versions.get(relation.oid)
                if version is None:
                    version = versions[relation.oid] = TableVersion(relation, known)
                    found += [version.columns, version.key, version.codec.schema]
                if tuples is None:
                    made = version.rows(changes, [0])
                else:
                    made = LogRows(version.projected(tuples), "r")
                found += [made.operations, made.subs, version.codec.batch(made.tuples).to_pylist()]
    except Exception as error:
        return repr(error)
    return found


def pieces(part: Any) -> list[tuple[Relation, Any, Any]]:
    if isinstance(part, SnapshotRows):
        return [(part.relation, part.rows, None)]
    if isinstance(part, TransactionPart):
        return [(r, None, [c]) for c in part.changes for r in relations_of(c)]
    return []


REGEX_TOPICS: Final = {
    "topic.naming.strategy": "schema_regex",
    "topic.regex": "t\\.(.*)",
    "topic.replacement": "all",
}
OTHERWISE: Final[dict[str, str | tuple[dict[str, str], str]]] = {
    "topic.prefix": "u",
    "schema.include.list": "tenant",
    "schema.exclude.list": "tenant",
    "table.include.list": r"tenant\.other",
    "table.exclude.list": r"tenant\.other",
    "table.ignore.builtin": "false",
    "column.include.list": r".*\.(id|code)",
    "column.exclude.list": r".*\.code",
    "message.prefix.include.list": "none",
    "message.prefix.exclude.list": "kept",
    "read.only": "true",
    "signal.data.collection": ({"table.include.list": r"public\.people"}, "public.signals"),
    "skipped.operations": "u",
    "skip.messages.without.change": "true",
    "tombstones.on.delete": "false",
    "message.key.columns": r"public\.people:code",
    "time.precision.mode": "connect",
    "decimal.handling.mode": "string",
    "interval.handling.mode": "string",
    "hstore.handling.mode": "map",
    "binary.handling.mode": "hex",
    "money.fraction.digits": "3",
    "include.unknown.datatypes": "true",
    "unavailable.value.placeholder": "gone",
    "guardrail.collections.max": "1",
    "guardrail.collections.limit.action": ({"guardrail.collections.max": "1"}, "fail"),
    "event.converting.failure.handling.mode": "fail",
    "waltap.arrow.out.of.range": "string",
    "waltap.arrow.unconstrained.numeric": "decimal256",
    "waltap.multidimensional.arrays": "literal",
    "waltap.composite.types": "struct",
    "waltap.streamed.names": "value",
    "waltap.infinite.date": "extreme",
    "include.schema.comments": "true",
    "column.propagate.source.type": r".*\.code",
    "datatype.propagate.source.type": r".*\.varchar",
    "column.truncate.to.N.chars": ({}, "column.truncate.to.1.chars"),
    "column.mask.with.N.chars": ({}, "column.mask.with.2.chars"),
    "column.mask.hash.v2.ALGORITHM.with.salt.SALT": ({}, "column.mask.hash.v2.SHA-256.with.salt.s"),
    "column.mask.hash.ALGORITHM.with.salt.SALT": ({}, "column.mask.hash.SHA-256.with.salt.s"),
    "waltap.unmatched.masks": "warn",
    "schema.name.adjustment.mode": ({"topic.prefix": "t-t"}, "avro"),
    "field.name.adjustment.mode": "avro",
    "schema.refresh.mode": "columns_diff_exclude_unchanged_toast",
    "provide.transaction.metadata": "true",
    "extended.headers.enabled": "false",
    "topic.delimiter": "_",
    "topic.cache.size": "7",
    "topic.heartbeat.prefix": "beat",
    "topic.heartbeat.name": "beats",
    "notification.sink.topic.name": "notices",
    "topic.transaction": ({"provide.transaction.metadata": "true"}, "ends"),
    "topic.regex": (REGEX_TOPICS, "t\\.public\\.(.*)"),
    "topic.replacement": (REGEX_TOPICS, "one"),
    "topic.key.enforce.uniqueness": (REGEX_TOPICS, "false"),
    "topic.key.field.name": (REGEX_TOPICS, "whose"),
    "topic.key.field.regex": ({**REGEX_TOPICS, "topic.key.field.replacement": "$1"}, "t\\.(.*)"),
    "topic.key.field.replacement": ({**REGEX_TOPICS, "topic.key.field.regex": "t\\.(.*)"}, "$1"),
}
"""Property → another value than its default, or (what else has to be set, that value); of a family, the
name of one that is set for the column ``code``."""


@cache
def before(settings: frozenset[tuple[str, str]]) -> tuple[object, object]:
    given = dict(settings)
    return records(given), rows(given)


@pytest.mark.parametrize("declaration", declarations(CaptureProperties), ids=lambda each: each.name)
def test_a_property_changes_what_it_declares_to_reach(declaration):
    value = OTHERWISE[declaration.name]
    settings, other = ({}, value) if isinstance(value, str) else value
    family = declaration.family is not None
    changed = {**settings, **({other: r".*\.code"} if family else {declaration.name: other})}
    records_before, rows_before = before(frozenset(settings.items()))
    found = {
        "records": records(changed) != records_before,
        "rows": rows(changed) != rows_before,
    }
    assert tuple(name for name, differs in found.items() if differs) == declaration.reach
