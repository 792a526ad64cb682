"""Read and write offsets in Debezium's form, for a move either way."""

from waltap.offsets.connect_offsets import ConnectOffsets
from waltap.offsets.debezium.errors import (
    DebeziumOffsetMissing,
    DebeziumOffsetsUnreadable,
    DebeziumOffsetUnusable,
    DebeziumStillReads,
)
from waltap.offsets.debezium.offset_map import OffsetMap, of_offset, told
from waltap.offsets.debezium.place import FileOffsets, place_of
from waltap.offsets.debezium.record_key import RecordKey, chosen

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
    "of_offset",
    "place_of",
    "told",
]
