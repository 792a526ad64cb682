"""Change events that came by way of Kafka, Debezium's or ours: a change log of them, which the same
appliers follow. Needs Spark's Kafka source in the session."""

from waltap_spark.kafka.feed import KafkaFeed
from waltap_spark.kafka.topics import KafkaTopics

__all__ = ["KafkaFeed", "KafkaTopics"]
