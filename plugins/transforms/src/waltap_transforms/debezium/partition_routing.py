"""PartitionRouting: choose the partition by fields of the event."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from pydantic import field_validator

from waltap.base.property import CommaList, Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.record_transform import ConnectRecord, RecordUnfit, SchemaMemory
from waltap_transforms.java.hashes import java_hash, murmur_hash
from waltap_transforms.specs import debezium_spec, each
from waltap_transforms.structs import field_of, is_envelope

__all__ = ["PARTITION_ROUTING"]

# Integer.MAX_VALUE: the mask that makes a Java hash non-negative.
LARGEST = 0x7FFFFFFF


class PartitionRoutingProperties(Properties):
    """Fields that decide about the partition."""

    fields: CommaList = declare(
        "partition.payload.fields",
        summary="Fields of the event, whose hashes are added up: `after.name`, `source.table`, "
        "`change.name` (of the old row for deletes, else of the new one). Those that it lacks, or that "
        "are null, do not count.",
        min_length=1,
        examples=("change.customer_id",),
    )
    partitions: int = declare(
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
        """Return ``record`` with its partitions.

        Raises: RecordUnfit.
        """
        event = record.value
        # Truncates and logical messages have no row to choose a partition by.
        if event is None or not is_envelope(record) or event.get("op") in ("t", "m"):
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

    def _reads(self, envelope: Schema, side: str) -> list[Read]:
        paths = [
            tuple(side if part == "change" and len(path) > 1 else part for part in path[:-1])
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
    found = last.schema

    def read(event: Mapping[str, Any]) -> tuple[Any, Schema] | None:
        struct: Any = event
        for name in path[:-1]:
            struct = struct.get(name)
            if struct is None:
                raise RecordUnfit(f"{name} is null: there is no {'.'.join(path)}")
        value = struct.get(path[-1])
        # Debezium reads the field by Struct.get, which gives the default for null.
        value = found.default if value is None else value
        return None if value is None else (value, found)

    return read


PARTITION_ROUTING = (
    debezium_spec(
        "partition-routing",
        "partitions.PartitionRouting",
        "Chooses the partition by fields of the event.",
        PartitionRoutingProperties,
        lambda properties, _context: each(PartitionRouting(properties)),
    ),
)
