"""Read and write destination files on disks and in object stores."""

from waltap.base.files.errors import (
    AccessRefused,
    BucketMissing,
    FilesInUse,
    FilesUnavailable,
    LocationUnknown,
    ObjectStoreUnavailable,
)
from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore, safe_name

__all__ = [
    "AccessRefused",
    "BucketMissing",
    "FileStore",
    "FilesInUse",
    "FilesUnavailable",
    "LocationUnknown",
    "ObjectStoreUnavailable",
    "StorageProperties",
    "safe_name",
]
