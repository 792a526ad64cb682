"""Tuples to Arrow columns: whole columns of PostgreSQL's text or send format, cast at once."""
