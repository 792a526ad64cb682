"""Replication: wire, stream, slot, publication."""
