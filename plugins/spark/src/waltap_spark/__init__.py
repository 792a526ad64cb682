"""Apache Spark for waltap: live tables from the change log."""
