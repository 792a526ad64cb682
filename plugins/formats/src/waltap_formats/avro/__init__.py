"""Avro, in the wire form of Confluent's serialisers."""
