"""Benchmarks: waltap beside the server's own limit and beside Debezium. `method.md` says how."""
