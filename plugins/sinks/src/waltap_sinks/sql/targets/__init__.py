"""The kinds of databases that the sink ``sql`` writes to."""
