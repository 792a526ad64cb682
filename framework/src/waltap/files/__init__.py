"""Files of destinations, on local disks and in object stores: the one way to them."""

from waltap.files.errors import (
    AccessRefused,
    BucketMissing,
    FilesAway,
    FilesInUse,
    FilesUnavailable,
    LocationUnknown,
)
from waltap.files.properties import StorageProperties
from waltap.files.store import FileStore, safe_name

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
