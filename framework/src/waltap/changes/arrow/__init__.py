"""Convert PostgreSQL tuples to Arrow, one whole column at once."""
