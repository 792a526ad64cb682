"""Snapshots: modes, export, COPY."""
