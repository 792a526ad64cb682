"""The engine's side of the Spark sink: it starts the driver process and watches its output."""
