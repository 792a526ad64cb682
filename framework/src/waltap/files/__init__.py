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
from waltap.files.store import Store, safe_name

__all__ = [
    "AccessRefused",
    "BucketMissing",
    "FilesAway",
    "FilesInUse",
    "FilesUnavailable",
    "LocationUnknown",
    "StorageProperties",
    "Store",
    "safe_name",
]
