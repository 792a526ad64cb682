"""The sink ``http``: records as requests, one each or many."""
