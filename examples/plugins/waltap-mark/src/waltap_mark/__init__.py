"""A signal action for waltap."""
