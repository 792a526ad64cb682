"""Hook implementations of waltap-sinks."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from waltap.hookspecs import hookimpl
from waltap.specs import CommandSpec, SinkSpec

if TYPE_CHECKING:
    from waltap.sink.sink import Sink, SinkContext


def _changelog_commands() -> Any:
    from waltap_sinks.changelog.commands import application

    return application


def _changelog(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_sinks.changelog.sink import ChangeLogSink

    return ChangeLogSink(properties, context)


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
    from waltap_sinks.changelog.properties import ChangeLogProperties

    return [
        SinkSpec(
            name="changelog",
            summary="Parquet segments per table with manifests; exactly once; what Spark reads.",
            properties=ChangeLogProperties,
            factory=_changelog,
        ),
    ]
