"""``waltap demo``: a real database becomes live Spark tables, on real data, checked row by row."""
