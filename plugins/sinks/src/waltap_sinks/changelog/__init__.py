"""The change log: Parquet segments per table and manifests that publish them, by position."""

from waltap_sinks.changelog.manifest import NOTHING, Manifest, Mark, Segment, TableEntry
from waltap_sinks.changelog.properties import ChangeLogProperties
from waltap_sinks.changelog.reader import ChangeLog
from waltap_sinks.changelog.sink import ChangeLogSink
from waltap_sinks.changelog.store import Store

__all__ = [
    "NOTHING",
    "ChangeLog",
    "ChangeLogProperties",
    "ChangeLogSink",
    "Manifest",
    "Mark",
    "Segment",
    "Store",
    "TableEntry",
]
