"""Transforms of records, as Kafka Connect and Debezium have them."""
