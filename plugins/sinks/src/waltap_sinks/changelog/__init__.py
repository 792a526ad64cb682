"""The change log: Parquet segments per table and manifests that publish them, by position.

What reads and writes it is loaded when it is asked for: every run asks for the properties.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from waltap_sinks.changelog.properties import ChangeLogProperties

if TYPE_CHECKING:
    from waltap_sinks.changelog.manifest import NOTHING, Manifest, Mark, Segment, TableEntry
    from waltap_sinks.changelog.reader import ChangeLog
    from waltap_sinks.changelog.readers import Reader, Readers
    from waltap_sinks.changelog.sink import ChangeLogSink
    from waltap_sinks.changelog.store import Store

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
    "ChangeLog": "reader",
    "ChangeLogSink": "sink",
    "Reader": "readers",
    "Readers": "readers",
    "Store": "store",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"{__name__} has no {name}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'manifest')}"), name)
