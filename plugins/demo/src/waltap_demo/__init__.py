"""``waltap demo``: real data in live Spark tables, checked row by row."""
