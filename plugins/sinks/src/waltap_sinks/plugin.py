"""Hook implementations of waltap-sinks."""

from collections.abc import Iterable

from waltap.hookspecs import hookimpl
from waltap.specs import SinkSpec
from waltap_sinks.changelog.properties import ChangeLogProperties
from waltap_sinks.changelog.sink import ChangeLogSink
from waltap_sinks.jsonl import JsonLinesProperties, JsonLinesSink
from waltap_sinks.null import NullSink


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the sinks of this distribution."""
    return [
        SinkSpec(
            name="jsonl",
            summary="One JSON object per record, to a file or standard output.",
            properties=JsonLinesProperties,
            factory=JsonLinesSink,
        ),
        SinkSpec(
            name="changelog",
            summary="Parquet segments per table with manifests; exactly once; what Spark reads.",
            properties=ChangeLogProperties,
            factory=ChangeLogSink,
        ),
        SinkSpec(
            name="null",
            summary="Counts records and throws them away.",
            factory=NullSink,
        ),
    ]
