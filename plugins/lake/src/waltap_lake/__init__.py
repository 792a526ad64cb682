"""Tables of Delta Lake and Apache Iceberg, without Spark and without Java."""
