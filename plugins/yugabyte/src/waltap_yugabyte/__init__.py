"""YugabyteDB for waltap: what it does otherwise than PostgreSQL."""
