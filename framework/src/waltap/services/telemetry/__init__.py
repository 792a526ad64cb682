"""Report on a running pipeline through observers of ``on_*`` hooks."""
