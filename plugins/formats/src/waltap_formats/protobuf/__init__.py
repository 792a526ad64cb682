"""Protobuf, in the wire form of Confluent's serialisers."""
