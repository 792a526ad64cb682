"""A signal channel for waltap."""
