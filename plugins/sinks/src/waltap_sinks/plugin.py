"""Hook implementations of waltap-sinks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import CheckSpec, CommandSpec, SinkSpec, lazy

if TYPE_CHECKING:
    from waltap.config.profile import Profile
    from waltap.ports.sink.verification import TableComparison


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """Contribute the commands of change logs, SQL targets and comparisons."""
    yield CommandSpec(
        name="changelog",
        summary="Show a change log and its readers; remove old files.",
        factory=lazy("waltap_sinks.changelog.commands:application").imported,
    )
    yield CommandSpec(
        name="sql",
        summary="Compare a target of the sink sql with its source; move its sequences.",
        factory=lazy("waltap_sinks.comparison.commands:sql_application").imported,
    )
    yield CommandSpec(
        name="verify",
        summary="Compare what a pipeline wrote with its source, row by row.",
        factory=lazy("waltap_sinks.comparison.commands:application").imported,
    )


@hookimpl
def choose_comparison(
    profile: "Profile", tables: "Sequence[str]", patience_s: float
) -> "Mapping[str, TableComparison] | None":
    """Compare destinations whose rows can be read back."""
    from waltap_sinks.comparison.commands import compared

    return compared(profile, tables, patience_s)


def _held_by_target(context: Any) -> Any:
    if not any(each.spec.name == "sql" for each in context.profile.sinks):
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
    return [
        SinkSpec(
            name="changelog",
            summary="Parquet segments per table with manifests; exactly once; what Spark reads.",
            properties=lazy("waltap_sinks.changelog.properties:ChangeLogProperties"),
            factory=lazy("waltap_sinks.changelog.sink:ChangeLogSink"),
            exactly_once=True,
            verification_source=lazy(
                "waltap_sinks.changelog.verification:open_verification_source"
            ),
        ),
        SinkSpec(
            name="files",
            summary="JSON lines or Parquet as whole files by table and day; exactly once.",
            properties=lazy("waltap_sinks.files.properties:FilesProperties"),
            factory=lazy("waltap_sinks.files.sink:FilesSink"),
            exactly_once=True,
        ),
        SinkSpec(
            name="http",
            summary="Posts records to an address, one each or many, in the order of their keys.",
            properties=lazy("waltap_sinks.http.properties:HttpProperties"),
            factory=lazy("waltap_sinks.http.sink:HttpSink"),
            shorthand="url",
        ),
        SinkSpec(
            name="sql",
            summary="Tables of a database, with the position in the same transaction; exactly once.",
            properties=lazy("waltap_sinks.sql.properties:SqlProperties"),
            factory=lazy("waltap_sinks.sql.sink:SqlSink"),
            shorthand="url",
            exactly_once=True,
            verification_source=lazy("waltap_sinks.sql.verification:open_verification_source"),
        ),
    ]
