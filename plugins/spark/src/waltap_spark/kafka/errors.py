"""What can go wrong with change events that come by way of Kafka.

SinkError
├── TopicsUnreadable   WT-5250   Spark has not what it takes to read topics, or no broker answers
├── OffsetsLost        WT-5251   records after those that were taken are gone
├── EventUnread        WT-5252   a record is no change event in the form that was said
└── ColumnsUnknown     WT-5253   events without a schema, of a table whose columns nobody named
"""

from waltap.errors import SinkError

__all__ = ["ColumnsUnknown", "EventUnread", "OffsetsLost", "TopicsUnreadable"]


class TopicsUnreadable(SinkError):
    """Spark's Kafka source is not there, or the broker or the registry does not answer."""

    code = "WT-5250"
    remedy = (
        "See the text. The session needs spark-sql-kafka-0-10_2.13 (and spark-avro_2.13 for Avro) of "
        "its generation in spark.jars.packages; options are those of Spark's own source."
    )


class OffsetsLost(SinkError):
    """A topic no longer has the records that follow those that were taken: retention removed them, or
    the topic was made anew. Tables would lack changes in silence."""

    code = "WT-5251"
    remedy = (
        "Have the connector take a new snapshot, and read its topics into another change log and other "
        "tables. Keep topics longer than the longest pause of this reader."
    )


class EventUnread(SinkError):
    """A record is no change event of Debezium's form in the format that was said, or cannot be taken."""

    code = "WT-5252"
    remedy = (
        "Set the topics' form: json or avro, with the registry's address. Topics must have "
        "whole events (before, after, source, op), not rows extracted by a transform. A topic "
        "with truncates must have one partition. bad = 'keep' stores such records and "
        "continues."
    )


class ColumnsUnknown(SinkError):
    """JSON events have no schema, and nobody said what the table's columns are."""

    code = "WT-5253"
    remedy = (
        "Name them: columns maps SCHEMA.TABLE to its columns as Spark's DDL has them, such as 'id INT, "
        "price DECIMAL(10,2)'; or let the connector write schemas "
        "(value.converter.schemas.enable = true), or Avro."
    )
