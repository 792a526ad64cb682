"""waltap: change data capture for PostgreSQL and YugabyteDB, in Python."""

__version__ = "0.1.0"
