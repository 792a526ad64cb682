"""Debezium's records as Kafka Connect's JsonConverter writes them."""
