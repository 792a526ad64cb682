"""What can be wrong with offsets that Debezium keeps, or is to get."""

from waltap.errors import OffsetError

__all__ = [
    "DebeziumOffsetMissing",
    "DebeziumOffsetUnusable",
    "DebeziumOffsetsUnreadable",
    "DebeziumOffsetsUnwritable",
    "DebeziumStillReads",
]


class DebeziumOffsetsUnreadable(OffsetError):
    """What is to hold Debezium's offsets cannot be read, or holds something else."""

    code = "WT-6301"
    remedy = (
        "{place} must be the file in which Debezium's FileOffsetBackingStore keeps offsets, or the topic "
        "in which a Connect worker does, as kafka://HOST:PORT/TOPIC."
    )


class DebeziumOffsetMissing(OffsetError):
    """None of the offsets that were found belongs to the profile's topic.prefix, or several do."""

    code = "WT-6302"
    remedy = (
        "topic.prefix must be the connector's; where several connectors have it, name one by --connector. "
        "Found: {found}."
    )


class DebeziumOffsetUnusable(OffsetError):
    """The offset is there, and no stream can go on from it."""

    code = "WT-6303"
    remedy = (
        "Let the one that stored it end its snapshot, stop it, and try again; or start anew, with a "
        "snapshot: `waltap run FILE` with a slot of its own (--set slot.name=NAME)."
    )


class DebeziumStillReads(OffsetError):
    """Somebody reads the slot: what is stored now is not the end."""

    code = "WT-6304"
    remedy = (
        "Stop the connector, or the pipeline, that reads slot {slot} (pid {reader}), and try again."
    )


class DebeziumOffsetsUnwritable(OffsetError):
    """The offset cannot be put where Debezium looks for it."""

    code = "WT-6305"
    remedy = "Make {place} writable; nothing was changed there, and waltap's own position stays."
