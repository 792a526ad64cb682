"""Read the tables of an output: live tables, time travel, verification."""
