"""A snapshotter for waltap."""
