"""Write tables of Delta Lake and Apache Iceberg without Spark."""
