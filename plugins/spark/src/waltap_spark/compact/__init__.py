"""Net changes: the last values of each key, in the order of the log."""
