"""Files by the addresses that Spark reads and writes them under.

Spark's filesystems are Hadoop's, which names some otherwise than pyarrow does: S3 is ``s3a://`` there, and
neither ``s3://`` nor ``s3n://`` is anything any more.
"""

from typing import Final

from waltap.base.files.store import FileStore

__all__ = ["address"]

S3: Final = frozenset({"s3", "s3n"})


def address(store: FileStore, path: str) -> str:
    """Return where ``path`` of ``store`` is, as Spark wants it."""
    found = store.uri(path)
    if store.local:
        return f"file://{found}"
    scheme, _, rest = found.partition("://")
    return f"s3a://{rest}" if scheme.lower() in S3 else found
