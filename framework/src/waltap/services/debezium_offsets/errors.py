"""Errors of Debezium's stored offsets."""

from waltap.errors import OffsetError


class DebeziumOffsetsUnreadable(OffsetError):
    """Debezium's offset storage is unreadable or contains other data."""

    code = "WT-6301"
    remedy = (
        "{place} must be the file in which Debezium's FileOffsetBackingStore keeps offsets, or the topic "
        "in which a Connect worker does, as kafka://HOST:PORT/TOPIC."
    )


class DebeziumOffsetMissing(OffsetError):
    """The storage has no offset of the profile's topic.prefix, or several."""

    code = "WT-6302"
    remedy = (
        "topic.prefix must be the connector's; where several connectors have it, name one by --connector. "
        "Found: {found}."
    )


class DebeziumOffsetUnusable(OffsetError):
    """No stream can resume from the stored offset."""

    code = "WT-6303"
    remedy = (
        "Let the connector that stored it end its snapshot, stop it, and try again; or start "
        "over with a snapshot: `waltap run FILE` with its own slot (--set slot.name=NAME)."
    )


class DebeziumStillReads(OffsetError):
    """Another process still reads the slot.

    Its stored offset is not its last one.
    """

    code = "WT-6304"
    remedy = (
        "Stop the connector, or the pipeline, that reads slot {slot} (pid {reader}), and try again."
    )


class DebeziumOffsetsUnwritable(OffsetError):
    """The offset cannot be written to Debezium's storage."""

    code = "WT-6305"
    remedy = "Make {place} writable; nothing was changed there, and waltap's own position stays."
