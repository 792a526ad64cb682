"""Sinks for change logs, files, HTTP and SQL, and comparison with the source."""
