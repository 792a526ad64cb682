"""Plan a commit's tables, changes and schema changes."""
