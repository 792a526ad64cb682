"""Stage 4: transforms of batches, before they are rendered."""
