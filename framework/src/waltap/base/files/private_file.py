"""Create files and folders that only their owner can read."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "close_to_others", "lies_in_private", "private", "private_folder"]

# Offsets, spilled rows and tokens are unmasked: no access for group and others.
FILE: Final = 0o600
FOLDER: Final = 0o700
_OTHERS: Final = 0o077


def private(path: Path | str, flags: int) -> int:
    """Open ``path`` with access for its owner alone, whatever the umask is.

    An existing file loses the access of other users. The function fits ``open`` as its ``opener``.
    Raises: OSError.
    """
    file = os.open(path, flags | os.O_CLOEXEC, FILE)
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS:
        with suppress(OSError):  # another user owns and shares it
            os.fchmod(file, FILE)
    return file


def private_folder(path: Path) -> None:
    """Create ``path`` and its missing parent folders for the owner alone.

    Existing folders keep their mode. Raises: OSError.
    """
    try:
        path.mkdir(FOLDER, exist_ok=True)
    except FileNotFoundError:
        private_folder(path.parent)
        path.mkdir(FOLDER, exist_ok=True)


def lies_in_private(path: Path) -> bool:
    """Return whether new files at ``path`` are closed to other users.

    The nearest existing folder decides that.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    return not path.stat().st_mode & _OTHERS


def close_to_others(folder: Path) -> None:
    """Remove the access of other users to ``folder`` and its content.

    Earlier versions created the files with the umask's mode. Files of another owner keep their mode. The
    function follows no links.
    """
    root = folder.resolve()
    _close(root)
    for place, folders, files in os.walk(root):
        for name in (*folders, *files):
            _close(Path(place, name))


def _close(path: Path) -> None:
    with suppress(OSError):
        mode = path.lstat().st_mode
        if mode & _OTHERS and not stat.S_ISLNK(mode):
            path.chmod(FOLDER if stat.S_ISDIR(mode) else FILE)
