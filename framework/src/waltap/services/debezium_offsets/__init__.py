"""Read and write offsets in Debezium's form, for a move either way."""

from waltap.ports.offsets.connect_offsets import ConnectOffsets
from waltap.services.debezium_offsets.errors import (
    DebeziumOffsetMissing,
    DebeziumOffsetsUnreadable,
    DebeziumOffsetUnusable,
    DebeziumStillReads,
)
from waltap.services.debezium_offsets.offset_map import OffsetMap, next_start, of_offset
from waltap.services.debezium_offsets.place import FileOffsets, RecordKey, chosen, place_of

__all__ = [
    "ConnectOffsets",
    "DebeziumOffsetMissing",
    "DebeziumOffsetUnusable",
    "DebeziumOffsetsUnreadable",
    "DebeziumStillReads",
    "FileOffsets",
    "OffsetMap",
    "RecordKey",
    "chosen",
    "next_start",
    "of_offset",
    "place_of",
]
