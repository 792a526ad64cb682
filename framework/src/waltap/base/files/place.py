"""Check whether a file or folder can be written.

The check leaves nothing behind.
"""

import errno
import os
import stat
from pathlib import Path

__all__ = ["refusal"]

PROBE_BYTES = 4096
# Linux makes files without a name; other systems lack the flag.
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS})


def refusal(path: Path, *, folder: bool) -> OSError | None:
    """Return the error that a write to ``path`` would raise, None for none.

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
