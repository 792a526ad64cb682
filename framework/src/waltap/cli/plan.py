"""``waltap plan``: what a start would make, read and deliver. Nothing is changed."""

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltap.base.text import printable
from waltap.cli.live_console import echo
from waltap.cli.profile_source import (
    SetOption,
    SinkOption,
    SourceArgument,
    any_sink,
    overrides,
    read,
)
from waltap.errors import WaltapError

if TYPE_CHECKING:
    from rich.console import Console

    from waltap.changes.mapping.type_registry import TypeRegistry
    from waltap.pipeline.setup.build import PipelineStages
    from waltap.ports.offsets.offset import Offset
    from waltap.ports.source.connector import Connector, PlannedTable, PreflightCheck, SetupPlan

__all__ = ["command"]

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def command(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    types: Annotated[
        bool, typer.Option("--types", help="Show what each column becomes, table by table.")
    ] = False,
    rate: Annotated[
        int,
        typer.Option(
            min=1, metavar="ROWS", help="Rows a second to count with, for the time of the snapshot."
        ),
    ] = 100_000,
    as_sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL alone, for whoever runs it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, columns included.")] = False,
) -> None:
    """Say what a start would make on the server, what it would read, and what events will hold.

    It connects and looks; it changes nothing. Exit code 1 when a start would be refused as things are.
    """
    from waltap.cli.connection import connected
    from waltap.config.resolve import resolve
    from waltap.pipeline.setup.offline_status import asked_of_the_stored_offset
    from waltap.pipeline.setup.preflight import checks
    from waltap.plugins.host import Host

    host, raw = Host(), read(source)
    profile = resolve(raw, host, sink=any_sink(raw, sink), overrides=overrides(raw, set_))
    with connected(profile, host) as (connector, stages):
        found = [each for each in checks(stages, connector, locked=False) if each.verdict != "ok"]
        plan = asked_of_the_stored_offset(
            stages.store, partial(_planned, connector), lambda found: isinstance(found, WaltapError)
        )
    if isinstance(plan, WaltapError):
        raise plan
    if as_json:
        echo(json.dumps(_document(plan, found, stages, rate), indent=2))
    elif as_sql:
        echo("\n".join(_sql(plan)))
    else:
        _print(plan, found, stages, rate, types_too=types)
    if any(check.verdict == "error" for check in found):
        raise typer.Exit(1)


def _planned(connector: "Connector", offset: "Offset | None") -> "SetupPlan | WaltapError":
    """Return what a start would make, or why there would be none."""
    try:
        return connector.plan(offset)
    except WaltapError as error:
        return error


def _sql(plan: "SetupPlan") -> Iterator[str]:
    if plan.by_others:
        yield "-- by a superuser, or the owner of what is named"
        yield from (f"{each};" for each in plan.by_others)
    if plan.statements:
        yield "-- by the role of the profile; waltap run does it"
        yield from (f"{each};" for each in plan.statements)
    if plan.slot is not None:
        yield "-- on a replication connection; waltap run does it, and WAL is kept from then on"
        yield f"-- {plan.slot}"


def _columns(table: "PlannedTable", types: "TypeRegistry") -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, Connect schema (of JSON and Avro) and Arrow type (of the change log and of Spark
    tables) of each column; an empty schema is of one that is left out."""
    from waltap.changes.arrow.column import strings
    from waltap.changes.mapping.type_reference import schema_text

    for column in table.relation.columns:
        of_type = column.data_type.name if column.data_type is not None else str(column.type_oid)
        mapping = types.of(table.relation, column)
        if mapping is None:
            yield column.name, of_type, "", ""
        else:
            arrow = mapping.arrow or strings()
            yield column.name, of_type, schema_text(mapping.schema), str(arrow.type())


def _before(table: "PlannedTable", stages: "PipelineStages") -> str:
    """Say what events of updates and deletes tell of the row as it was."""
    identity = stages.relations.identity(table.relation)
    return f"{identity.name.upper()}: {identity.before}"


def _kept(table: "PlannedTable", stages: "PipelineStages") -> str:
    """Say what the sinks make of a table, "" where they make the same of all."""
    profile = stages.profile
    sinks = [outlet.sink for outlet in profile.outlets] or [profile.sink]
    told = (
        sink.spec.keeps(sink.properties, table.relation.name) for sink in sinks if sink.spec.keeps
    )
    return "; ".join(dict.fromkeys(told))


def _document(
    plan: "SetupPlan", found: "list[PreflightCheck]", stages: "PipelineStages", rate: int
) -> dict[str, Any]:
    rows = sum(table.rows or 0 for table in plan.tables if table.read)
    return {
        "statements": plan.statements,
        "by_others": plan.by_others,
        "slot": plan.slot,
        "problems": [
            {"name": each.name, "verdict": each.verdict, "found": each.found, "remedy": each.remedy}
            for each in found
        ],
        "snapshot": {"rows": rows, "seconds": round(rows / rate, 1)},
        "tables": [
            {
                "table": table.relation.name,
                "key": list(table.relation.primary_key or ()),
                "before": _before(table, stages),
                "kept_as": _kept(table, stages),
                "rows": table.rows,
                "bytes": table.bytes,
                "read": table.read,
                "columns": [
                    dict(zip(("name", "type", "schema", "arrow"), column, strict=True))
                    for column in _columns(table, stages.types)
                ],
            }
            for table in plan.tables
        ],
    }


def _print(
    plan: "SetupPlan",
    found: "list[PreflightCheck]",
    stages: "PipelineStages",
    rate: int,
    *,
    types_too: bool,
) -> None:
    from rich import box
    from rich.table import Table

    from waltap.cli.live_console import answers

    console = answers()
    for check in found:
        _say(console, f"{check.verdict}: {check.name}: {check.found}", check.remedy)
    made = [*plan.statements, *((plan.slot,) if plan.slot else ())]
    _listed(console, "To be run by others before", plan.by_others)
    _listed(console, "The start makes", made or ("nothing",))
    kept = [_kept(each, stages) for each in plan.tables]
    more = ["kept as"] if any(kept) else []
    shown = Table("table", "key", "rows", "size", "read", "before", *more, box=box.SIMPLE_HEAD)
    for each, told in zip(plan.tables, kept, strict=True):
        shown.add_row(
            each.relation.name,
            ", ".join(each.relation.primary_key or ()),
            "" if each.rows is None else f"{each.rows:,}",
            "" if each.bytes is None else _size(each.bytes),
            "yes" if each.read else "",
            _before(each, stages),
            *([told] if more else []),
        )
    console.print(shown)
    read_ = [each for each in plan.tables if each.read]
    rows = sum(each.rows or 0 for each in read_)
    if read_:
        size = _size(sum(each.bytes or 0 for each in read_))
        console.print(
            f"Snapshot: {len(read_)} table{'s' if len(read_) > 1 else ''}, about {rows:,} rows, {size}; "
            f"about {_duration(rows / rate)} at {rate:,} rows a second"
        )
    for each in plan.tables if types_too else ():
        columns = Table(
            "column",
            "type",
            "JSON and Avro",
            "Arrow",
            title=each.relation.name,
            box=box.SIMPLE_HEAD,
        )
        for name, of_type, schema, arrow in _columns(each, stages.types):
            columns.add_row(name, of_type, schema or "left out", arrow)
        console.print(columns)


def _listed(console: "Console", title: str, statements: "tuple[str, ...] | list[str]") -> None:
    if statements:
        console.print(f"{title}:", style="bold")
        for each in statements:
            console.print(
                f"  {printable(str(each))}", markup=False, highlight=False, soft_wrap=True
            )


def _say(console: "Console", line: str, remedy: str) -> None:
    console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    if remedy:
        console.print(f"  → {printable(remedy)}", markup=False, highlight=False, soft_wrap=True)


def _size(size: float) -> str:
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} {UNITS[unit]}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = seconds / 60
    return f"{minutes:,.0f} min" if minutes < 120 else f"{minutes / 60:,.1f} h"
