"""Open the pyarrow filesystem of a path or URI."""

import errno
import os
import stat
import urllib.parse
from pathlib import Path
from typing import Any, Final, NamedTuple

from waltap.base.files.errors import LocationUnknown
from waltap.base.files.properties import StorageProperties
from waltap.base.import_rules import fs

# Check whether a file or folder can be written.
#
# The check leaves nothing behind.

PROBE_BYTES = 4096
# Linux makes files without a name; other systems lack the flag.
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS})


def refusal(path: Path, *, folder: bool) -> OSError | None:
    """Return the error that a write to ``path`` would raise.

    ``path`` is a file, or with ``folder`` a folder.
    """
    try:
        if path.exists() and not folder:
            return _file_refusal(path)
        # A missing folder is created later, in the nearest one that exists.
        while not path.exists() and path != path.parent:
            path = path.parent
        if not path.is_dir():
            return _error(errno.ENOTDIR, path)
        return _folder_refusal(path)
    except OSError as error:
        return error


def _file_refusal(path: Path) -> OSError | None:
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its other end
        if path.is_dir():
            return _error(errno.EISDIR, path)
        return None if os.access(path, os.W_OK) else _error(errno.EACCES, path)
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    return None if _room(path) else _error(errno.ENOSPC, path)


def _folder_refusal(path: Path) -> OSError | None:
    """Write a file without a name, or check rights and room."""
    if _NAMELESS:
        try:
            fd = os.open(path, _NAMELESS | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            # The filesystem may lack such files; then rights and room decide.
            if error.errno not in _UNSUPPORTED:
                return error
        else:
            try:
                os.write(fd, bytes(PROBE_BYTES))
            except OSError as error:
                return _error(error.errno or errno.EIO, path)
            finally:
                os.close(fd)
            return None
    if not os.access(path, os.W_OK | os.X_OK):
        return _error(errno.EACCES, path)
    return None if _room(path) else _error(errno.ENOSPC, path)


def _room(path: Path) -> bool:
    found = os.statvfs(path)
    # Filesystems reserve some blocks for root.
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return free * found.f_frsize >= PROBE_BYTES


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


S3: Final = ("s3", "s3a", "s3n")
GCS: Final = ("gs", "gcs")
AZURE: Final = ("abfs", "abfss", "az")
OTHERS: Final = ("file", "hdfs", "viewfs", "mock")


class FileLocation(NamedTuple):
    """Describe an opened location."""

    filesystem: "fs.FileSystem"
    # The location's path in the filesystem.
    base: str
    # The location without its query, which messages may show and callers may extend.
    shown: str
    # An object store's endpoint, account or server. Two locations of one ``base`` differ in it.
    host: str = ""


def opened(location: str, storage: StorageProperties) -> FileLocation:
    """Open the filesystem of ``location``.

    Raises: LocationUnknown; OSError and ValueError of pyarrow, which looks up the region of a bucket.
    """
    if not location.strip():
        raise LocationUnknown("the path of the destination is empty", path=location)
    if "://" not in location:
        return FileLocation(fs.LocalFileSystem(), str(Path(location).absolute()), location)
    parts = urllib.parse.urlsplit(location)
    shown = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
    if parts.password is not None:
        host = parts.netloc.rpartition("@")[2]
        raise LocationUnknown(
            f"{parts.scheme}://{host}{parts.path} was given with a password in it, which messages would "
            "show: give it by storage.access.key and storage.secret.key",
            path=f"{parts.scheme}://{host}{parts.path}",
        )
    scheme = parts.scheme.lower()
    if scheme not in (*S3, *GCS, *AZURE, *OTHERS):
        raise LocationUnknown(f"{shown} is of a kind that is not known: {scheme}", path=shown)
    if scheme in (*S3, *GCS) and not parts.netloc:
        raise LocationUnknown(f"{shown} names no bucket", path=shown)
    # The lock of the location is named by the endpoint, so the endpoint must be known here.
    given = urllib.parse.parse_qs(parts.query).get("endpoint_override", [""])[0]
    endpoint = given or storage.storage_endpoint or ""
    if scheme in S3:
        endpoint = endpoint or _endpoint_of_environment() or ""
    host = endpoint.rpartition("://")[2].rstrip("/")
    if scheme in OTHERS:
        host = parts.netloc
    elif scheme in AZURE:
        host = f"{host} {storage.storage_access_key or parts.netloc}"
    # pyarrow reads the options of a query itself; waltap's own properties do not apply then.
    if parts.query or scheme in OTHERS:
        found, base = fs.FileSystem.from_uri(location)
        return FileLocation(found, base, shown, host)
    base = f"{parts.netloc}{parts.path}"
    if scheme in S3:
        return FileLocation(_s3(parts.netloc, storage), base, shown, host)
    if scheme in GCS:
        return FileLocation(_gcs(storage), base, shown, host)
    container, _, account = parts.netloc.rpartition("@")
    filesystem = _azure(shown, account if container else "", storage)
    return FileLocation(filesystem, f"{container or account}{parts.path}", shown, host)


def _s3(bucket: str, storage: StorageProperties) -> "fs.FileSystem":
    endpoint = storage.storage_endpoint or _endpoint_of_environment()
    given: dict[str, Any] = {
        "access_key": storage.storage_access_key,
        "secret_key": storage.storage_secret_key,
        "session_token": storage.storage_session_token,
        "role_arn": storage.storage_role,
        "endpoint_override": endpoint,
        "region": storage.storage_region or _region(bucket, endpoint),
    }
    if storage.storage_role is not None:
        given["session_name"] = "waltap"
    return fs.S3FileSystem(
        **{name: value for name, value in given.items() if value is not None},
        anonymous=storage.storage_anonymous,
        connect_timeout=storage.storage_connect_ms / 1000,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=storage.storage_attempts),
        allow_delayed_open=True,  # small objects in one request
    )


def _endpoint_of_environment() -> str | None:
    """Return the endpoint in the environment.

    Amazon's own tools read these variables, pyarrow does not.
    """
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def _region(bucket: str, endpoint: str | None) -> str | None:
    """Return the region of ``bucket``, None where no lookup is needed."""
    # Only Amazon's own store can answer the lookup, and its SDK reads the variables itself.
    if endpoint or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return None
    found: str = fs.resolve_s3_region(bucket)
    return found


def _gcs(storage: StorageProperties) -> "fs.FileSystem":
    given: dict[str, Any] = {}
    if storage.storage_endpoint:
        scheme, _, host = storage.storage_endpoint.rpartition("://")
        given = {"endpoint_override": host, "scheme": scheme or "https"}
    return fs.GcsFileSystem(anonymous=storage.storage_anonymous, **given)


def _azure(shown: str, host: str, storage: StorageProperties) -> "fs.FileSystem":
    account = storage.storage_access_key or host.partition(".")[0]
    if not account:
        raise LocationUnknown(
            f"{shown} names no account: abfs://container@account/folder, or storage.access.key",
            path=shown,
        )
    given: dict[str, Any] = {}
    if storage.storage_endpoint:
        scheme, _, authority = storage.storage_endpoint.rpartition("://")
        for kind in ("blob", "dfs"):
            given[f"{kind}_storage_authority"] = authority
            given[f"{kind}_storage_scheme"] = scheme or "https"
    if storage.storage_secret_key and storage.storage_session_token:
        raise LocationUnknown(
            f"{shown} is given an account key and a SAS token: one of them", path=shown
        )
    return fs.AzureFileSystem(
        account,
        account_key=storage.storage_secret_key,
        sas_token=storage.storage_session_token,
        **given,
    )
