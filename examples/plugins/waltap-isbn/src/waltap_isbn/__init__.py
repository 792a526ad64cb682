"""A converter for waltap."""
