"""Translate file addresses to Hadoop's names for Spark.

Spark reads files through Hadoop, which names some file systems differently than pyarrow. S3 is
``s3a://`` there. Hadoop no longer supports ``s3://`` and ``s3n://``.
"""

from typing import Final

from waltap.base.files.store import FileStore

S3: Final = frozenset({"s3", "s3n"})


def address(store: FileStore, path: str) -> str:
    """Return the address of ``path`` in ``store`` for Spark."""
    found = store.uri(path)
    if store.local:
        return f"file://{found}"
    scheme, _, rest = found.partition("://")
    return f"s3a://{rest}" if scheme.lower() in S3 else found
