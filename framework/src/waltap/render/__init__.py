"""Stage 5: changes to records, and columns to their types."""
