"""A offset store for waltap."""
