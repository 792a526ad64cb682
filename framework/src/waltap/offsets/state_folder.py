"""What a pipeline's state folder holds: ``waltap.state.dir``/NAME. Sinks keep files of their own there."""

from pathlib import Path
from typing import Final

from waltap.offsets.durable_file import draft_of

__all__ = [
    "BELONGINGS",
    "CONTROL",
    "DEAD_LETTERS",
    "DIFFERENCES",
    "GAPS",
    "HTTP_KEY",
    "LOCK",
    "OFFSET",
    "OUTLETS",
    "OUTLET_POSITIONS",
    "RELATIONS",
    "SPILL",
    "TABLES",
    "own_files",
]

LOCK: Final = "lock"
"""Held by the process that runs the pipeline (`PipelineLock`)."""

CONTROL: Final = "control.sock"
"""Socket of the process that runs the pipeline (`ControlSocket`); one that died may leave it behind."""

OFFSET: Final = "offset.json"
"""What was delivered and is durable (`Offset`), unless ``waltap.offset.file`` is elsewhere."""

BELONGINGS: Final = "belongings.json"
"""Slot and publications, and which of them the pipeline made (`Belongings`)."""

RELATIONS: Final = "relations"
"""Tables as they were described last (`RelationMemory`)."""

GAPS: Final = "gaps"
"""Folder of gap certificates (`Gaps`); `waltap drop` leaves it: they tell what a sink may lack."""

HTTP_KEY: Final = "http-token"
"""What a request over HTTP has to bring that changes something, where the profile has no token."""

TABLES: Final = "tables.json"
"""Tables that there were at the last start (`NewTables`)."""

OUTLET_POSITIONS: Final = "sinks.json"
"""How far each of several sinks has got (`OutletPositions`)."""

OUTLETS: Final = "sinks"
"""Folder with a state folder for each of several sinks."""

DEAD_LETTERS: Final = "dead-letters"
"""Folder of events that could not be delivered (`LetterStore`)."""

DIFFERENCES: Final = "differences"
"""Folder of files that name rows which only a destination has, by the last comparison."""

SPILL: Final = "spill"
"""Folder of transactions that wait for their fate and are large, or prepared (`SpillArea`)."""


def own_files(folder: Path) -> list[Path]:
    """Return what there is in ``folder`` of the pipeline's own, its lock left out."""
    names = (OFFSET, BELONGINGS, TABLES, RELATIONS, OUTLET_POSITIONS, HTTP_KEY)
    files = [folder / name for name in names]
    paths = [path for file in files for path in (file, draft_of(file))]
    paths += [folder / name for name in (SPILL, DIFFERENCES, CONTROL)]
    return [path for path in paths if path.exists()]
