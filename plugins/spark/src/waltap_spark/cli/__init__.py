"""The commands `waltap spark …`."""
