"""A check for waltap."""
