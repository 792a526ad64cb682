"""YugabyteDB for waltap: its differences from PostgreSQL."""
