"""A sink for waltap."""
