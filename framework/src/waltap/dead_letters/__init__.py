"""Events that cannot be delivered: which ones, what becomes of them, and where they are kept."""
