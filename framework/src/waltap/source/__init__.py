"""Stage 1: where changes come from, and how far we got."""
