"""Write and read change logs: Parquet segments per table, and manifests.

Only the properties are loaded at once, since every run needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waltap_sinks.changelog.properties import ChangeLogProperties

if TYPE_CHECKING:
    from waltap.base.files.store import FileStore
    from waltap_sinks.changelog.manifest import NOTHING, LogPosition, Manifest, Segment, TableEntry
    from waltap_sinks.changelog.reader import ChangeLog, LogReader, LogReaders
    from waltap_sinks.changelog.sink import ChangeLogSink

__all__ = [
    "NOTHING",
    "ChangeLog",
    "ChangeLogProperties",
    "ChangeLogSink",
    "FileStore",
    "LogPosition",
    "LogReader",
    "LogReaders",
    "Manifest",
    "Segment",
    "TableEntry",
]

_MODULES = {
    "ChangeLog": f"{__name__}.reader",
    "ChangeLogSink": f"{__name__}.sink",
    "LogReader": f"{__name__}.reader",
    "LogReaders": f"{__name__}.reader",
    "FileStore": "waltap.base.files.store",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"{__name__} has no {name}")
    return getattr(import_module(_MODULES.get(name, f"{__name__}.manifest")), name)
