"""A waltap decoder for PostgreSQL's ``test_decoding``."""
