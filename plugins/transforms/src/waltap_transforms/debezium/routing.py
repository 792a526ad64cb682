"""Routing: ByLogicalTableRouter, TimescaleDb and PartitionRouting."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from pydantic import field_validator, model_validator

from waltap.base.cache import BoundedDict
from waltap.base.property import Maybe, NonEmptyList, Positive, Properties, declare, declare_family
from waltap.changes.capture.topic_naming import schema_namer
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.java.hashes import java_hash, murmur_hash
from waltap_transforms.java.patterns import replaced_by
from waltap_transforms.specs import FilledList, debezium_spec, each, each_event, warnings
from waltap_transforms.structs import (
    Defaults,
    defaults_of,
    field_of,
    filled,
    is_envelope,
    value_of,
    without_repeats,
)

# ByLogicalTableRouter: route several tables to one topic.
#
# The keys of the records get a field that names their table.

# Tables that come and go must not make the caches grow without end.
MAX_TOPICS = 10_000
_TABLE = Schema(kind=ConnectKind.STRING)


class ByLogicalTableRouterProperties(Properties):
    """Topics to merge, and the field of keys that names the table."""

    routes = True

    regex: str = declare(
        "topic.regex",
        summary="Pattern (Java's) of topics, which they match as a whole.",
        examples=("(.*)customers_shard(.*)",),
        patterns="topics",
    )
    replacement: str = declare(
        "topic.replacement",
        summary="The topic to go to, with the pattern's groups as `$1`.",
        min_length=1,
        examples=("$1customers",),
    )
    unique: bool = declare(
        "key.enforce.uniqueness",
        default=True,
        summary="Add to keys a field that names the table: its topic, or what `key.field.replacement` "
        "makes of that.",
    )
    key_regex: Maybe[str] = declare(
        "key.field.regex",
        summary="Pattern of topics that `key.field.replacement` is applied to.",
        patterns="topics",
    )
    key_field: str = declare(
        "key.field.name",
        default="__dbz__physicalTableIdentifier",
        summary="Name of that field of keys.",
    )
    key_replacement: Maybe[str] = declare(
        "key.field.replacement",
        summary="What the field holds, with the groups of `key.field.regex` as `$1`.",
    )
    names: Literal["none", "avro", "avro_unicode"] = declare(
        "schema.name.adjustment.mode",
        default="none",
        summary="How names of schemas, which are made from the topic's, are adjusted to what Avro takes.",
    )
    cache_size: int = declare(
        "logical.table.cache.size",
        default=16,
        summary="Accepted for Debezium's sake: so many topics are remembered as there are.",
    )

    @model_validator(mode="after")
    def _readable(self) -> "ByLogicalTableRouterProperties":
        replaced_by(self.regex, self.replacement)
        if self.key_regex is not None and self.key_regex.strip():
            # Without a replacement, all tables would get the same empty name in their keys.
            if not (self.key_replacement or "").strip():
                raise ValueError("key.field.replacement is missing beside key.field.regex")
            replaced_by(self.key_regex, self.key_replacement or "")
        return self


class ByLogicalTableRouter:
    """Give records of several tables one topic."""

    def __init__(self, properties: ByLogicalTableRouterProperties) -> None:
        self._unique, self._field = properties.unique, properties.key_field
        self._topic = replaced_by(properties.regex, properties.replacement)
        self._table = None
        if properties.key_regex is not None and properties.key_regex.strip():
            self._table = replaced_by(properties.key_regex, properties.key_replacement or "")
        self._adjusted = schema_namer(properties.names)
        self._keys = SchemaMemory(self._key_schema, most=MAX_TOPICS)
        self._values = SchemaMemory(self._made, most=MAX_TOPICS)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        topic = self._topic(record.topic)
        # The pattern does not match, or the new name is empty: Debezium keeps the topic in both cases.
        if not topic:
            return record
        key_schema, key = None, None
        if record.key is not None:
            if record.key_schema is None or record.key_schema.kind is not ConnectKind.STRUCT:
                raise RecordUnfit("a key is no struct")
            key_schema, key = self._keys.of(record.key_schema, topic), record.key
            # Rows of two tables may have equal keys, which compaction of the topic would mix up.
            if self._unique:
                table = record.topic if self._table is None else self._table(record.topic)
                key = {**key, self._field: record.topic if table is None else table}
        schema, value = record.value_schema, record.value
        if value is not None and schema is not None and is_envelope(record):
            schema, defaults = self._values.of(schema, topic)
            value = filled(value, defaults) if defaults else value
        return ConnectRecord(
            topic, key_schema, key, schema, value, record.headers, record.partition,
            record.timestamp,
        )  # fmt: skip

    def _key_schema(self, schema: Schema, topic: str) -> Schema:
        fields = schema.fields
        if self._unique:
            fields += (Field(self._field, _TABLE),)
        # Schemas are named after the topic, as in Debezium's own records.
        return _renamed(schema, self._adjusted(f"{topic}.Key"), fields)

    def _made(self, schema: Schema, topic: str) -> tuple[Schema, Defaults]:
        """Return the renamed schema of events, and the defaults of its fields."""
        before = field_of(schema, "before")
        if before is None:
            raise RecordUnfit(f"{schema.name} has no field before")
        row = before.schema
        row = _renamed(row, self._adjusted(f"{topic}.Value"), row.fields)
        # Both row images share one schema object, so encoders build it once.
        fields = tuple(
            Field(field.name, row) if field.name in ("before", "after") else field
            for field in schema.fields
        )
        made = _renamed(schema, self._adjusted(f"{topic}.Envelope"), fields)
        # Debezium reads the envelope's own fields by Struct.get, so null becomes their default.
        return made, defaults_of(made)


def _renamed(schema: Schema, name: str, fields: tuple[Field, ...]) -> Schema:
    """Return ``schema`` with another name and other fields.

    It has no default, which would have the old fields.
    """
    without_repeats(name, fields)
    return msgspec.structs.replace(schema, name=name, fields=fields, default=None)


LOGICAL_TABLE_ROUTER = debezium_spec(
    "ByLogicalTableRouter",
    "Gives records of several tables one topic, with a field in their keys that names the table.",
    ByLogicalTableRouterProperties,
    lambda properties, _context: each(ByLogicalTableRouter(properties)),
)


# TimescaleDb: give the events of chunks the topic and the name of their hypertable.
#
# The catalogue of the extension says which it is.

CATALOGUE = "_timescaledb_catalog"
CHUNK_HEADER, HYPERTABLE_HEADER = (
    f"__debezium_timescaledb_{each}" for each in ("chunk", "hypertable")
)
_NAME_OID, _INT_OID = 19, 23


def _catalogue(table: str, *columns: tuple[str, int]) -> Relation:
    made = tuple(Column(name=name, type_oid=oid) for name, oid in columns)
    return Relation(oid=0, schema=CATALOGUE, table=table, columns=made)


_NAMES = (("schema_name", _NAME_OID), ("table_name", _NAME_OID))
_VIEW = (("user_view_schema", _NAME_OID), ("user_view_name", _NAME_OID))
CHUNKS = _catalogue("chunk", *_NAMES, ("hypertable_id", _INT_OID))
HYPERTABLES = _catalogue("hypertable", ("id", _INT_OID), *_NAMES)
AGGREGATES = _catalogue("continuous_agg", ("mat_hypertable_id", _INT_OID), *_VIEW)


class TimescaleDbProperties(Properties):
    """Schemas of chunks, and the prefix of their topics."""

    routes = True

    schemas: NonEmptyList = declare(
        "schema.list",
        default=("_timescaledb_internal",),
        summary="Schemas with the chunks of hypertables.",
    )
    prefix: str = declare(
        "target.topic.prefix",
        default="timescaledb",
        summary="First part of topics; schema and name of the hypertable, or of the continuous aggregate, "
        "follow.",
    )
    connection: dict[str, str] = declare_family(
        "database.NAME",
        pattern=r"database\..+",
        summary="Accepted for Debezium's sake: the catalogue is read over the connector's connection.",
        secret=True,
    )


class _Chunk(msgspec.Struct, frozen=True):
    """Name the (schema, table) of a chunk's hypertable."""

    hypertable: tuple[str, str]
    # View of the continuous aggregate whose rows the hypertable has.
    aggregate: tuple[str, str] | None


class TimescaleDb:
    """Route the events of chunks."""

    def __init__(self, properties: TimescaleDbProperties, context: RecordTransformContext) -> None:
        self._schemas, self._prefix = frozenset(properties.schemas), properties.prefix
        self._rows = context.rows_now
        self._report = warnings(context)
        self._chunks = BoundedDict[tuple[str, str], _Chunk](MAX_TOPICS)

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return the records of a batch in order. Raises: SourceError."""
        # A table that is no chunk now may be one later.
        absent: set[tuple[str, str]] = set()
        return [self._routed(record, absent) for record in records]

    def _routed(self, record: ConnectRecord, absent: set[tuple[str, str]]) -> ConnectRecord:
        # A tombstone has no event, so it stays where it is, as in Debezium.
        source = record.value.get("source") if record.value and is_envelope(record) else None
        if source is None or source.get("schema") not in self._schemas:
            return record
        name = source["schema"], source["table"]
        chunk = self._chunks.get(name)
        if chunk is None and name not in absent:
            chunk = self._found(name)
            if chunk is None:
                absent.add(name)
                self._report(f"{'.'.join(name)} is no chunk of a hypertable: its events stay")
        if chunk is None:
            return record
        self._chunks[name] = chunk
        names = [(CHUNK_HEADER, name)]
        if chunk.aggregate is not None:
            names.append((HYPERTABLE_HEADER, chunk.hypertable))
        added = tuple(
            (f"{header}_{part}", _TABLE, text)
            for header, (schema, table) in names
            for part, text in (("table", table), ("schema", schema))
        )
        schema, table = chunk.aggregate or chunk.hypertable
        return msgspec.structs.replace(
            record,
            topic=f"{self._prefix}.{schema}.{table}",
            value={**record.value, "source": {**source, "schema": schema, "table": table}},
            headers=record.headers + added,
        )

    def _found(self, name: tuple[str, str]) -> _Chunk | None:
        """Read the hypertable of a chunk from the catalogue. Raises: SourceError."""
        names, view = ([each for each, _ in columns] for columns in (_NAMES, _VIEW))
        ids = self._rows(CHUNKS, ["hypertable_id"], names, [name])
        tables = self._rows(HYPERTABLES, names, ["id"], ids) if ids else []
        if not tables:
            return None
        views = self._rows(AGGREGATES, view, ["mat_hypertable_id"], ids)
        (hypertable,), aggregate = map(_pair, tables), next(map(_pair, views), None)
        return _Chunk(hypertable, aggregate)


def _pair(row: Tuple) -> tuple[str, str]:
    schema, table = map(str, row)
    return schema, table


TIMESCALE = debezium_spec(
    "TimescaleDb",
    "Gives the events of chunks the topic and the name of their hypertable or continuous aggregate.",
    TimescaleDbProperties,
    TimescaleDb,
    name="timescaledb",
    package="io.debezium.connector.postgresql.transforms.timescaledb",
)


# Integer.MAX_VALUE: the mask that makes a Java hash non-negative.
LARGEST = 0x7FFFFFFF


class PartitionRoutingProperties(Properties):
    """Fields that decide about the partition."""

    fields: FilledList = declare(
        "partition.payload.fields",
        min_length=1,
        summary="Fields of the event whose hashes are added: `after.name`, `source.table`, "
        "`change.name` (of the old row for deletes, else of the new one). Missing and "
        "null fields are ignored.",
        examples=("change.customer_id",),
    )
    partitions: Positive = declare(
        "partition.topic.num", summary="Number of partitions of the topic.", ge=1
    )
    function: Literal["java", "murmur"] = declare(
        "partition.hash.function",
        default="java",
        summary="The hash function: Java's hashCode, or MurmurHash3.",
    )

    @field_validator("fields")
    @classmethod
    def _shallow(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(".".join(part.strip() for part in path.split(".")) for path in value)


Read = Callable[[Mapping[str, Any]], tuple[Any, Schema] | None]


class PartitionRouting:
    """Set the partition of records."""

    def __init__(self, properties: PartitionRoutingProperties) -> None:
        self._paths = [tuple(path.split(".")) for path in properties.fields]
        self._partitions = properties.partitions
        self._hash = murmur_hash if properties.function == "murmur" else java_hash
        # `change` means the new row, except in a delete, which has only the old one.
        self._rows = SchemaMemory(lambda schema: self._reads(schema, "after"))
        self._old = SchemaMemory(lambda schema: self._reads(schema, "before"))

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        event = record.value
        # Truncates and logical messages have no row to choose a partition by.
        if event.get("op") in ("t", "m"):
            return record
        assert record.value_schema is not None
        reads = self._old if event.get("op") == "d" else self._rows
        found = [read(event) for read in reads.of(record.value_schema)]
        hashes = [self._hash(*each) for each in found if each is not None]
        # A record without any of the fields keeps its partition.
        if not hashes:
            return record
        total = sum(hashes) & LARGEST
        # Debezium replaces Integer.MAX_VALUE by 0.
        total = 0 if total == LARGEST else total
        return msgspec.structs.replace(record, partition=total % self._partitions)

    def _reads(self, envelope: Schema, image: str) -> list[Read]:
        paths = [
            tuple(image if part == "change" and len(path) > 1 else part for part in path[:-1])
            + path[-1:]
            for path in self._paths
        ]
        return [read for path in paths if (read := _reader(envelope, path)) is not None]


def _reader(schema: Schema, path: tuple[str, ...]) -> Read | None:
    """Return the function that reads the field at ``path``.

    None means that there is no such field.
    """
    inside = schema
    for name in path[:-1]:
        field = field_of(inside, name)
        if field is None or field.schema.kind is not ConnectKind.STRUCT:
            return None
        inside = field.schema
    last = field_of(inside, path[-1])
    if last is None:
        return None

    def read(event: Mapping[str, Any]) -> tuple[Any, Schema] | None:
        struct: Any = event
        for name in path[:-1]:
            struct = struct.get(name)
            if struct is None:
                raise RecordUnfit(f"{name} is null: there is no {'.'.join(path)}")
        value = value_of(last, struct)
        return None if value is None else (value, last.schema)

    return read


PARTITION_ROUTING = debezium_spec(
    "partitions.PartitionRouting",
    "Chooses the partition by fields of the event.",
    PartitionRoutingProperties,
    lambda properties, _context: each_event(PartitionRouting(properties)),
)
