"""Errors of filesystems, recognised by the library's text.

```
SinkError
├── FilesUnavailable        WT-5101   files cannot be read or written
│   ├── FilesAway           WT-5121   the object store does not answer
│   ├── BucketMissing       WT-5122   its bucket or container is missing
│   ├── AccessRefused       WT-5123   it refuses the credentials or their rights
│   └── LocationUnknown     WT-5124   the location or its settings are unusable
└── FilesInUse              WT-5103   another process writes there
```
"""

import re
from typing import Final

from waltap.errors import RetryVerdict, SinkError


class FilesUnavailable(SinkError):
    """A destination's file cannot be listed, read, written or synchronised."""

    code = "WT-5101"
    retry = RetryVerdict.RECONNECT
    remedy = (
        "Check that {path} can be written and has room; delivery resumes from the last "
        "manifest, nothing is lost or doubled."
    )


FilesAway = FilesUnavailable.define(
    "FilesAway",
    "WT-5121",
    "The object store does not answer in time.",
    "A run that had begun tries again by itself; else check storage.endpoint, the network and the "
    "store's own state. If the store throttles (503, SlowDown), raise offset.flush.interval.ms. "
    "Delivery of {path} resumes after the last published files.",
)
BucketMissing = FilesUnavailable.define(
    "BucketMissing",
    "WT-5122",
    "The bucket or container does not exist; waltap never creates one.",
    "Make the bucket of {path}, or correct sink.path and storage.region, and start again. If it "
    "was deleted, its published files are lost: `waltap offsets clear FILE` begins with a new "
    "snapshot.",
    retry=RetryVerdict.NEVER,
)
AccessRefused = FilesUnavailable.define(
    "AccessRefused",
    "WT-5123",
    "The object store refuses the credentials or their rights.",
    "Give valid credentials (storage.access.key, storage.secret.key, or the environment's own) "
    "that may list, read, write and delete objects below {path}, and start again: delivery "
    "resumes after the last published files.",
    retry=RetryVerdict.NEVER,
)
LocationUnknown = FilesUnavailable.define(
    "LocationUnknown",
    "WT-5124",
    "A location is of no known kind, or its settings conflict.",
    "Give a path, or a URI: s3://bucket/folder, gs://bucket/folder, "
    "abfs://container@account/folder, hdfs://host/folder; `waltap explain FILE` shows the "
    "properties storage.*.",
    retry=RetryVerdict.NEVER,
)


class FilesInUse(SinkError):
    """Another process holds this folder's lock."""

    code = "WT-5103"
    remedy = "Stop the other process (see {path}), or give this pipeline another folder."


# Texts of Amazon's, Google's and Microsoft's libraries. pyarrow gives no error codes.
_BUCKET: Final = re.compile(
    r"NO_SUCH_BUCKET|Bucket '[^']*' not found|The specified bucket does not exist|ContainerNotFound"
    r"|specified container does not exist"
)
_ACCESS: Final = re.compile(
    r"EXPIRED_?TOKEN|ExpiredToken|InvalidToken|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|ACCESS_DENIED"
    r"|INVALID_CLIENT_TOKEN_ID|MISSING_AUTHENTICATION_TOKEN|UNRECOGNIZED_CLIENT|INVALID_SIGNATURE"
    r"|REQUEST_EXPIRED|AuthenticationFailed|AuthorizationFailure|PERMISSION_DENIED|UNAUTHENTICATED"
    r"|HTTP status 40[13]|40[13] (?:Forbidden|Unauthorized)"
)
_AWAY: Final = re.compile(
    r"NETWORK_CONNECTION|REQUEST_TIMEOUT|SERVICE_UNAVAILABLE|SLOW_DOWN|INTERNAL_FAILURE|THROTTLING"
    r"|HTTP status 5\d\d|curlCode|UNAVAILABLE|Could not resolve|Connection refused"
)


def kind_of(cause: Exception, *, remote: bool) -> type[FilesUnavailable]:
    """Return the error class of ``cause``."""
    # A local disk has no bucket and no credentials, so its texts are not searched.
    if not remote:
        return FilesUnavailable
    text = str(cause)
    for pattern, kind in ((_BUCKET, BucketMissing), (_ACCESS, AccessRefused), (_AWAY, FilesAway)):
        if pattern.search(text):
            return kind
    return FilesUnavailable
