"""Properties of the sink, and which tables and columns an output has by them."""
