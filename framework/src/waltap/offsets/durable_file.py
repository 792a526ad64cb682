"""A small file that is replaced as a whole: a reader sees the old or the new text, never a torn one."""

import os
from pathlib import Path

from waltap.offsets.private_file import private, private_folder

__all__ = ["draft_of", "replace_durably", "sync"]


def replace_durably(path: Path, data: bytes) -> None:
    """Make ``data`` the content of ``path``, for its owner alone; it outlives a crash from then on.

    Raises: OSError.
    """
    new = draft_of(path)
    private_folder(path.parent)
    with open(new, "wb", opener=private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def sync(path: Path | str) -> None:
    """Make durable what a file holds; of a folder, the names in it, as fsync of a file does not.

    Raises: OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def draft_of(path: Path) -> Path:
    """Return the file that a crash may leave beside ``path``."""
    return path.with_suffix(f"{path.suffix}.new")
