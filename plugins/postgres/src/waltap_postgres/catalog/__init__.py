"""The system catalogues."""
