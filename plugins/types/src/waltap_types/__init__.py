"""Types of PostgreSQL's extensions: PostGIS and pgvector.

Written as any plugin's types are: they need `waltap.changes.mapping` and nothing else. An import contract
keeps it so.
"""
