"""Files and folders for their owner alone: they hold rows without masks, positions and secrets."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "close_to_others", "lies_in_private", "private", "private_folder"]

FILE: Final = 0o600
FOLDER: Final = 0o700
_OTHERS: Final = 0o077


def private(path: Path | str, flags: int) -> int:
    """Return a descriptor of ``path``, which others cannot open, whatever the umask is; one that is there
    is closed to them. Fits ``open`` as its ``opener``. Raises: OSError."""
    file = os.open(path, flags | os.O_CLOEXEC, FILE)
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS:
        with suppress(OSError):  # of another owner, who shares it
            os.fchmod(file, FILE)
    return file


def private_folder(path: Path) -> None:
    """Make ``path`` and the folders above it where they are missing; those that are there keep their mode.

    Raises: OSError.
    """
    try:
        path.mkdir(FOLDER, exist_ok=True)
    except FileNotFoundError:
        private_folder(path.parent)
        path.mkdir(FOLDER, exist_ok=True)


def lies_in_private(path: Path) -> bool:
    """Tell whether ``path``, or the nearest folder above it that is there, is closed to others: then so is
    what is made in it."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return not path.stat().st_mode & _OTHERS


def close_to_others(folder: Path) -> None:
    """Close ``folder`` and everything in it to all but its owner, as an earlier version did not. What
    belongs to another user stays as it is; links are not followed."""
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
