"""Formats beside JSON: Avro with a schema registry, texts and bytes."""
