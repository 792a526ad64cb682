"""Net changes: the last values of each key."""
