"""A small file that is replaced as a whole: a reader sees the old or the new text, never a torn one."""

import os
from pathlib import Path

__all__ = ["draft_of", "replace_durably"]


def replace_durably(path: Path, data: bytes) -> None:
    """Make ``data`` the content of ``path``; it outlives a crash from then on. Raises: OSError."""
    new = draft_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def draft_of(path: Path) -> Path:
    """Return the file that a crash may leave beside ``path``."""
    return path.with_suffix(f"{path.suffix}.new")
