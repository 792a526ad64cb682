"""A transform for waltap."""
