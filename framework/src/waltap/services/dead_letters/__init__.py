"""Find, store and redeliver events that a sink refuses."""
