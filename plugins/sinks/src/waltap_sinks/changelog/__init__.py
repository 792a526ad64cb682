"""Write and read change logs: Parquet segments per table, and manifests.

Only the properties are loaded at once, since every run needs them.
"""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use
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

__getattr__ = on_first_use(__name__)
