"""The change log: Parquet segments per table and manifests that publish them, by position.

What reads and writes it is loaded when it is asked for: every run asks for the properties.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waltap_sinks.changelog.properties import ChangeLogProperties

if TYPE_CHECKING:
    from waltap.files.store import Store
    from waltap_sinks.changelog.manifest import NOTHING, Manifest, Mark, Segment, TableEntry
    from waltap_sinks.changelog.reader import ChangeLog
    from waltap_sinks.changelog.readers import Reader, Readers
    from waltap_sinks.changelog.sink import ChangeLogSink

__all__ = [
    "NOTHING",
    "ChangeLog",
    "ChangeLogProperties",
    "ChangeLogSink",
    "Manifest",
    "Mark",
    "Reader",
    "Readers",
    "Segment",
    "Store",
    "TableEntry",
]

_MODULES = {
    "ChangeLog": f"{__name__}.reader",
    "ChangeLogSink": f"{__name__}.sink",
    "Reader": f"{__name__}.readers",
    "Readers": f"{__name__}.readers",
    "Store": "waltap.files.store",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"{__name__} has no {name}")
    return getattr(import_module(_MODULES.get(name, f"{__name__}.manifest")), name)
