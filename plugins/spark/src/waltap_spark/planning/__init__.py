"""Plan a commit: which tables, which changes, which schema changes; without Spark."""
