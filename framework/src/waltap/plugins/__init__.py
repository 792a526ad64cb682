"""Load plugins and call their hooks."""
