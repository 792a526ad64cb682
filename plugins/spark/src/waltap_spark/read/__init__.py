"""Read an output's tables: live, at a time, for verification."""
