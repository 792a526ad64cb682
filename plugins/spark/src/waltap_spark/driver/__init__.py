"""The driver process: follows a change log, and applies it in a Spark session."""
