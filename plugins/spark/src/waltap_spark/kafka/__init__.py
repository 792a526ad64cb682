"""A change log from Kafka topics of change events.

The same appliers follow it. The session needs Spark's Kafka source.
"""

from waltap_spark.kafka.feed import KafkaFeed
from waltap_spark.kafka.topics import KafkaTopics

__all__ = ["KafkaFeed", "KafkaTopics"]
