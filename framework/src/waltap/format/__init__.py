"""The contract of a record format, and what it gives: records."""
