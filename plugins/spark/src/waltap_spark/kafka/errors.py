"""Errors of change events from Kafka topics.

SinkError
├── TopicsUnreadable   WT-5250   Spark cannot read topics, or no broker answers
├── OffsetsLost        WT-5251   records after those that were taken are gone
├── EventUnreadable    WT-5252   a record is no change event of the declared form
└── ColumnsUnknown     WT-5253   events without a schema, of a table without declared columns
"""

from waltap.errors import SinkError

TopicsUnreadable = SinkError.define(
    "TopicsUnreadable",
    "WT-5250",
    "Spark's Kafka source is missing, or a server does not answer.",
    "See the text. The session needs spark-sql-kafka-0-10_2.13 (and spark-avro_2.13 for Avro) of "
    "its generation in spark.jars.packages; options are those of Spark's own source.",
)
# Retention removed them, or the topic was created again. Tables would silently lack changes.
OffsetsLost = SinkError.define(
    "OffsetsLost",
    "WT-5251",
    "A topic has lost records that were not read yet.",
    "Have the connector take a new snapshot, and read its topics into another change log and "
    "other tables. Keep topics longer than the longest pause of this reader.",
)
EventUnreadable = SinkError.define(
    "EventUnreadable",
    "WT-5252",
    "A record is no usable Debezium event in the declared format.",
    "Set the topics' form: json or avro, with the registry's address. Topics must have whole "
    "events (before, after, source, op), not rows extracted by a transform. A topic with "
    "truncates must have one partition. bad = 'keep' stores such records and continues.",
)
ColumnsUnknown = SinkError.define(
    "ColumnsUnknown",
    "WT-5253",
    "JSON events have no schema, and the table's columns are not declared.",
    "Name them: columns maps SCHEMA.TABLE to its columns as Spark's DDL has them, such as 'id "
    "INT, price DECIMAL(10,2)'; or let the connector write schemas "
    "(value.converter.schemas.enable = true), or Avro.",
)
