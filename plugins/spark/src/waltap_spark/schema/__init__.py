"""Spark's types of columns, and SQL expressions."""
