"""JSON with a schema in a registry, in the wire form of Confluent's serialisers."""
