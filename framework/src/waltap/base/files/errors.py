"""Errors of filesystems, recognised by the library's text."""

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


ObjectStoreUnavailable = FilesUnavailable.define("ObjectStoreUnavailable", "WT-5121")
BucketMissing = FilesUnavailable.define("BucketMissing", "WT-5122", retry=RetryVerdict.NEVER)
AccessRefused = FilesUnavailable.define("AccessRefused", "WT-5123", retry=RetryVerdict.NEVER)
LocationUnknown = FilesUnavailable.define("LocationUnknown", "WT-5124", retry=RetryVerdict.NEVER)
FilesInUse = SinkError.define("FilesInUse", "WT-5103")

# Addresses and paths. They have names of tables in them, which must not change what an error means.
PATHS: Final = re.compile(r"""[^\s<>"']*/[^\s<>"']*""")

# Texts of Amazon's, Google's and Microsoft's libraries. pyarrow gives no error codes.
_BUCKET: Final = re.compile(
    r"NO_SUCH_BUCKET|Bucket '[^']*' not found|The specified bucket does not exist|ContainerNotFound"
    r"|specified container does not exist"
)
_ACCESS: Final = re.compile(
    r"EXPIRED_?TOKEN|ExpiredToken|InvalidToken|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|ACCESS_DENIED"
    r"|INVALID_CLIENT_TOKEN_ID|MISSING_AUTHENTICATION_TOKEN|UNRECOGNIZED_CLIENT|INVALID_SIGNATURE"
    r"|REQUEST_EXPIRED|Authentication(?:Exception|Failed)|AuthorizationFailure|PERMISSION_DENIED|UNAUTHENTICATED"
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
    text = PATHS.sub("", str(cause))
    for pattern, kind in (
        (_BUCKET, BucketMissing),
        (_ACCESS, AccessRefused),
        (_AWAY, ObjectStoreUnavailable),
    ):
        if pattern.search(text):
            return kind
    return FilesUnavailable
