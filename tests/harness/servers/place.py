"""Where test servers put their data: in memory, where the machine has room for it."""

import shutil
import tempfile
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")

ROOM = 8 << 30
"""Free bytes, of `MEMORY` and of the machine, from which on data goes there; `MEMORY` of a container is often 64 MB."""


def data_folder(prefix: str) -> Path:
    """Make a folder for the data of a server; its caller removes it.

    A database is 300 files. Where ext4 has no journal, it searches past each inode that was freed in the last
    minutes, so that creating and dropping a database per test costs 230 ms in the kernel; in memory 45.
    """
    return Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY if _free() >= ROOM else None))


def data_folders(prefix: str) -> list[Path]:
    """Return the folders that `data_folder` made, of killed test runs, too."""
    return [
        found
        for place in (MEMORY, Path(tempfile.gettempdir()))
        for found in place.glob(f"{prefix}*")
    ]


def _free() -> int:
    if not MEMORY.is_dir():
        return 0
    available: int = psutil.virtual_memory().available
    return min(shutil.disk_usage(MEMORY).free, available)
