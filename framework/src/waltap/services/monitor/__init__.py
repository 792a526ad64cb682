"""Serve metrics, health and a status page over HTTP."""
