"""Check and plan a start: server, offset, slot, publications."""
