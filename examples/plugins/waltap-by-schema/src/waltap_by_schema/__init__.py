"""A topic naming for waltap."""
