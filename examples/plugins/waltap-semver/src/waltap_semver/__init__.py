"""A type for waltap."""
