"""The slot guardian: how long the WAL that a slot keeps may grow, and what is done about it."""
