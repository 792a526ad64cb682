"""Transforms of records, beside the Java classes whose names they have."""
