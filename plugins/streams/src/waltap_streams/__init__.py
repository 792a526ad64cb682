"""Message streams as sinks: Redis, NATS JetStream, Amazon Kinesis."""
