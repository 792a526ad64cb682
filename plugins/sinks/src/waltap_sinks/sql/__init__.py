"""Write rows to databases, with the position in the same transaction."""
