"""Properties of the sink, and rules for tables and columns."""
