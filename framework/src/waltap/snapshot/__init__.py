"""Snapshots: modes, plans, chunks, watermarks."""
