"""Hook implementations of waltap-sinks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import CheckSpec, CommandSpec, SinkSpec

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.ports.sink.sink import Sink, SinkContext
    from waltap.ports.sink.verification import TableComparison, VerificationSource


def _changelog_commands() -> Any:
    from waltap_sinks.changelog.commands import application

    return application


def _changelog(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_sinks.changelog.sink import ChangeLogSink

    return ChangeLogSink(properties, context)


def _files(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_sinks.files.sink import FilesSink

    return FilesSink(properties, context)


def _http(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_sinks.http.sink import HttpSink

    return HttpSink(properties, context)


def _sql(properties: Any, context: "SinkContext") -> "Sink":
    from waltap_sinks.sql.sink import SqlSink

    return SqlSink(properties, context)


def _sql_readable(properties: Any, pipeline: str) -> "VerificationSource":
    from waltap_sinks.sql.verification import open_readable

    return open_readable(properties, pipeline)


def _changelog_readable(properties: Any, pipeline: str) -> "VerificationSource":
    from waltap_sinks.changelog.verification import open_readable

    return open_readable(properties, pipeline)


def _verify_command() -> Any:
    from waltap_sinks.comparison.commands import application

    return application


def _sql_commands() -> Any:
    from waltap_sinks.sql.commands import application

    return application


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """Contribute the commands of change logs, SQL targets and comparisons."""
    yield CommandSpec(
        name="changelog",
        summary="Look into a change log, and clean it up.",
        factory=_changelog_commands,
    )
    yield CommandSpec(
        name="sql",
        summary="Compare a target of the sink sql with its source; move its sequences.",
        factory=_sql_commands,
    )
    yield CommandSpec(
        name="verify",
        summary="Compare what a pipeline wrote with its source, row by row.",
        factory=_verify_command,
    )


@hookimpl
def choose_comparison(
    profile: "Profile", tables: "Sequence[str]", patience_s: float
) -> "Mapping[str, TableComparison] | None":
    """Compare destinations whose rows can be read back."""
    from waltap_sinks.comparison.commands import compared

    return compared(profile, tables, patience_s)


def _held_by_target(context: Any) -> Any:
    sinks = [outlet.sink for outlet in context.profile.outlets] or [context.profile.sink]
    if not any(each.spec.name == "sql" for each in sinks):
        return []
    from waltap_sinks.sql.fit_check import held

    return held(context)


@hookimpl
def register_checks() -> Iterable[CheckSpec]:
    """Contribute the check that a target holds the source's values."""
    yield CheckSpec(
        name="target tables",
        summary="Keys and texts that a MariaDB or MySQL target of the sink sql does not hold.",
        factory=_held_by_target,
    )


@hookimpl
def register_sinks() -> Iterable[SinkSpec]:
    """Contribute the sinks of this distribution."""
    from waltap_sinks.changelog.properties import ChangeLogProperties
    from waltap_sinks.files.properties import FilesProperties
    from waltap_sinks.http.properties import HttpProperties
    from waltap_sinks.sql.properties import SqlProperties

    return [
        SinkSpec(
            name="changelog",
            summary="Parquet segments per table with manifests; exactly once; what Spark reads.",
            properties=ChangeLogProperties,
            factory=_changelog,
            exactly_once=True,
            readable=_changelog_readable,
        ),
        SinkSpec(
            name="files",
            summary="JSON lines or Parquet as whole files by table and day; exactly once.",
            properties=FilesProperties,
            factory=_files,
            exactly_once=True,
        ),
        SinkSpec(
            name="http",
            summary="Posts records to an address, one each or many, in the order of their keys.",
            properties=HttpProperties,
            factory=_http,
            shorthand="url",
        ),
        SinkSpec(
            name="sql",
            summary="Tables of a database, with the position in the same transaction; exactly once.",
            properties=SqlProperties,
            factory=_sql,
            shorthand="url",
            exactly_once=True,
            readable=_sql_readable,
        ),
    ]
