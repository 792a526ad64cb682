"""A replica identity for waltap."""
