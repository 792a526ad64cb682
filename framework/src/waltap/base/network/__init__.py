"""Reach servers: HTTP, certificates, waits between tries."""
