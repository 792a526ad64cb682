"""Locks for places whose storage keeps none, among the processes of one user on one machine.

An engine that was killed leaves its Spark process, which applies what there is and ends then. The next
engine starts another at once: it has to wait, wherever the files are.
"""

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

from waltap.offsets.private_file import private_folder

__all__ = ["machine_lock"]


def machine_lock(place: str) -> Path | None:
    """Return the file that who writes ``place`` holds, in a folder that is there; None where this user may
    keep no such file, or cannot lock it: then nobody is seen."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    name = hashlib.sha256(place.encode()).hexdigest()[:32]
    try:
        # a relative one counts as none, by the specification of these folders
        base = state if state.is_absolute() else Path.home() / ".local/state"
        folder = base / "waltap/locks"
        private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:  # a home on a network may know no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return folder / name
