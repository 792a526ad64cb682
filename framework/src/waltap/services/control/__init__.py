"""Let processes of the same user reach a running pipeline."""
