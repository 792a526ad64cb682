"""Replace small files atomically and durably."""

import os
from pathlib import Path

from waltap.base.files.private_file import private, private_folder

__all__ = ["draft_of", "replace_durably", "sync"]


def replace_durably(path: Path, data: bytes) -> None:
    """Replace the content of ``path`` atomically and durably.

    A reader sees the old or the new content, never a part. Only the owner can read the file.

    Raises: OSError.
    """
    new = draft_of(path)
    private_folder(path.parent)
    with open(new, "wb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # The content must be on disk before the name points to it.
    new.replace(path)
    # A file's fsync does not cover its name: the folder has that.
    sync(path.parent)


def sync(path: Path | str) -> None:
    """Flush a file or a folder to disk.

    Raises: OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def draft_of(path: Path) -> Path:
    """Return the draft file that a crash may leave behind."""
    return path.with_suffix(f"{path.suffix}.new")
