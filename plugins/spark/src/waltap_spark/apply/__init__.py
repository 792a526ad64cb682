"""Apply changes to tables: commits, compaction, maintenance."""
