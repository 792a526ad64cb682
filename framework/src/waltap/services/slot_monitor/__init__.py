"""Watch how much WAL a slot retains, and act on it."""
