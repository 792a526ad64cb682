"""Apache Kafka: a sink, a signal channel and a notification channel, on librdkafka."""
