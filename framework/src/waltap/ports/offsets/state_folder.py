"""Name the files in a pipeline's state folder.

The folder is ``waltap.state.dir``/NAME. Sinks keep their own files there too.
"""

import os
from pathlib import Path
from typing import Final

from waltap.base.files.durable_file import draft_of
from waltap.errors import OffsetError

LOCK: Final = "lock"
"""Held by the process that runs the pipeline (`PipelineLock`)."""

CONTROL: Final = "control.sock"
"""Socket of the process that runs the pipeline (`ControlSocket`); a crash leaves it behind."""

OFFSET: Final = "offset.json"
"""The stored offset (`Offset`), unless ``waltap.offset.file`` names another file."""

OWNED_OBJECTS: Final = "belongings.json"
"""Slot and publications, and which of them the pipeline created (`OwnedObjects`)."""

RELATIONS: Final = "relations"
"""The last description of each table (`RelationMemory`)."""

GAPS: Final = "gaps"
"""Folder of gap certificates (`GapCertificates`). `waltap drop` keeps it: they name missing changes."""

HTTP_KEY: Final = "http-token"
"""Token for changes over HTTP, where the profile has none."""

TABLES: Final = "tables.json"
"""Tables of the database at the last start (`NewTables`)."""

SINK_POSITIONS: Final = "sinks.json"
"""Position of each of several sinks (`BranchPositions`)."""

SINK_FOLDERS: Final = "sinks"
"""Folder with a state folder for each of several sinks."""

DEAD_LETTERS: Final = "dead-letters"
"""Folder of events that could not be delivered (`DeadLetterStore`)."""

DIFFERENCES: Final = "differences"
"""Folder with the rows that only the destination had in the last comparison."""

SPILL: Final = "spill"
"""Folder of unfinished transactions that are large or prepared (`SpillArea`)."""

StateFolderUnusable = OffsetError.define("StateFolderUnusable", "WT-6005")


def own_files(folder: Path) -> list[Path]:
    """Return the pipeline's existing files in ``folder``, except its lock."""
    names = (OFFSET, OWNED_OBJECTS, TABLES, RELATIONS, SINK_POSITIONS, HTTP_KEY)
    files = [folder / name for name in names]
    # A crash may leave a draft beside each of these files.
    paths = [path for file in files for path in (file, draft_of(file))]
    paths += [folder / name for name in (SPILL, DIFFERENCES, CONTROL)]
    return [path for path in paths if path.exists()]


def state_unusable(error: Exception, folder: Path) -> OffsetError | None:
    """Return the error of a state file, None for others."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str | os.PathLike):
        return None
    path = Path(error.filename)
    if not path.is_relative_to(folder):
        return None
    return StateFolderUnusable(f"{path} cannot be used: {error.strerror}", path=folder)


def unusable(folder: Path, error: OSError) -> OffsetError:
    """Return the error of a state folder that the system refuses."""
    return StateFolderUnusable(f"no state can be kept in {folder}: {error.strerror}", path=folder)
