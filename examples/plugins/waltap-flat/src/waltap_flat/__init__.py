"""A format for waltap."""
