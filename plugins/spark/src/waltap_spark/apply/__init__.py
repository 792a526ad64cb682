"""Apply changes to the tables of an output: commits, compaction, maintenance, suspended tables."""
