"""Process changes without I/O.

Decoded messages, capture, types, events and transactions.
"""
