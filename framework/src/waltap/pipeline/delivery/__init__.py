"""Render batches, write them to the sinks, and store positions."""
