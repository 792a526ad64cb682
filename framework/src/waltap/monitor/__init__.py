"""A running pipeline seen from outside: metrics, health, and a page for people, over HTTP."""
