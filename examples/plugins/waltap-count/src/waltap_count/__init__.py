"""A command for waltap."""
