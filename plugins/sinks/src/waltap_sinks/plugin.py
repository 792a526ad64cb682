"""Hook implementations of waltap-sinks."""

from collections.abc import Iterable
from typing import Any

from waltap.hookspecs import hookimpl
from waltap.specs import CommandSpec, SinkSpec
from waltap_sinks.changelog.properties import ChangeLogProperties
from waltap_sinks.changelog.sink import ChangeLogSink
from waltap_sinks.jsonl import JsonLinesProperties, JsonLinesSink
from waltap_sinks.null import NullSink


def _changelog_commands() -> Any:
    from waltap_sinks.changelog.commands import application

    return application


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """Contribute the command of the change log."""
    yield CommandSpec(
        name="changelog",
        summary="Look into a change log, and clean it up.",
        factory=_changelog_commands,
    )


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
