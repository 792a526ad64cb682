"""Hook implementations of waltap-sinks."""

from collections.abc import Iterable

from waltap.hookspecs import hookimpl
from waltap.specs import SinkSpec
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
            name="null",
            summary="Counts records and throws them away.",
            factory=NullSink,
        ),
    ]
