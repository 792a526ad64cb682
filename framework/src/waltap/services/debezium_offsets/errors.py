"""Errors of Debezium's stored offsets."""

from waltap.errors import OffsetError

DebeziumOffsetsUnreadable = OffsetError.define(
    "DebeziumOffsetsUnreadable",
    "WT-6301",
    "Debezium's offset storage is unreadable or contains other data.",
    "{place} must be the file in which Debezium's FileOffsetBackingStore keeps offsets, or the "
    "topic in which a Connect worker does, as kafka://HOST:PORT/TOPIC.",
)
DebeziumOffsetMissing = OffsetError.define(
    "DebeziumOffsetMissing",
    "WT-6302",
    "The storage has no offset of the profile's topic.prefix, or several.",
    "topic.prefix must be the connector's; where several connectors have it, name one by "
    "--connector. Found: {found}.",
)
DebeziumOffsetUnusable = OffsetError.define(
    "DebeziumOffsetUnusable",
    "WT-6303",
    "No stream can resume from the stored offset.",
    "Let the connector that stored it end its snapshot, stop it, and try again; or start over "
    "with a snapshot: `waltap run FILE` with its own slot (--set slot.name=NAME).",
)
# Its stored offset is not its last one.
DebeziumStillReads = OffsetError.define(
    "DebeziumStillReads",
    "WT-6304",
    "Another process still reads the slot.",
    "Stop the connector, or the pipeline, that reads slot {slot} (pid {reader}), and try again.",
)
DebeziumOffsetsUnwritable = OffsetError.define(
    "DebeziumOffsetsUnwritable",
    "WT-6305",
    "The offset cannot be written to Debezium's storage.",
    "Make {place} writable; nothing was changed there, and waltap's own position stays.",
)
