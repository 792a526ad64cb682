"""An offset store for waltap."""
