"""The engine's side of the Spark sink."""
