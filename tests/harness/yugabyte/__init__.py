"""Doubles of YugabyteDB, built from published sources; no YugabyteDB server was run."""
