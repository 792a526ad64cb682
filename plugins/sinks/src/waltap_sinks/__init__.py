"""Sinks for change logs, files, HTTP and SQL; comparison."""
