"""A record transform for waltap."""
