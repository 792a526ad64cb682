"""Read an output's tables, and the change log by ``format("waltap")``."""
