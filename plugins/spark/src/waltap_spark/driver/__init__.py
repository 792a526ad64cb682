"""The driver process, which applies a change log with Spark."""
