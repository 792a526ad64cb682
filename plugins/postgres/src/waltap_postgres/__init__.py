"""PostgreSQL for waltap: replication, snapshots, types, replica identities."""
