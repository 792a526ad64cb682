"""Sinks for change logs, files, HTTP and SQL, and their comparison with the source."""
