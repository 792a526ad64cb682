"""Read and write destination files on disks and in object stores."""

from waltap.base.files.errors import (
    AccessRefused,
    BucketMissing,
    FilesAway,
    FilesInUse,
    FilesUnavailable,
    LocationUnknown,
)
from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore, safe_name

__all__ = [
    "AccessRefused",
    "BucketMissing",
    "FileStore",
    "FilesAway",
    "FilesInUse",
    "FilesUnavailable",
    "LocationUnknown",
    "StorageProperties",
    "safe_name",
]
