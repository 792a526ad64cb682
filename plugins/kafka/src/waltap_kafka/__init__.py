"""Apache Kafka on librdkafka: sink, offset store, signals, notifications."""
