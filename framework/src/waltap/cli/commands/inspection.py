"""``waltap plan``: what a start would make, read and deliver. Nothing is changed."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltap.base.text import printable
from waltap.cli.profile_source import (
    SetOption,
    SinkOption,
    SourceArgument,
    any_sink,
    overrides,
    read,
)
from waltap.cli.terminal import echo
from waltap.errors import WaltapError

if TYPE_CHECKING:
    from rich.console import Console

    from waltap.changes.mapping.type_registry import TypeRegistry
    from waltap.config.namespace import ExplainedProperty
    from waltap.config.profile import Profile
    from waltap.config.resolve import ProfileValidation
    from waltap.pipeline.setup.build import PipelineStages
    from waltap.ports.offsets.offset import Offset
    from waltap.ports.source.connector import Connector, PlannedTable, PreflightCheck, SetupPlan

__all__ = [
    "doctor",
    "explain",
    "plan",
]


# ``waltap explain``: every property of a profile with its value, where it comes from, its
# meaning.


def explain(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    given: Annotated[
        bool, typer.Option("--given", help="Leave out properties that have their default.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    code: Annotated[
        str | None,
        typer.Option(
            "--code",
            metavar="SCHEMA.TABLE",
            help="Print the code that is generated for a table instead.",
        ),
    ] = None,
) -> None:
    """Show every property of a profile: value, where it comes from, meaning. Secrets are hidden.

    Of a faulty profile it shows what is right, and then what is wrong: exit code 2. --code connects to
    the database; it changes nothing there.
    """
    from waltap.config.resolve import resolve, survey
    from waltap.plugins.host import Host

    raw = read(source)
    used = any_sink(raw, sink)
    if code is not None:
        settings = {
            "publication.keyless.tables": "publish"
        }  # no table is refused: none is published
        settings |= overrides(raw, set_)
        _print_code(resolve(raw, Host(), sink=used, overrides=settings), code)
        return
    found = survey(raw, Host(), sink=used, overrides=overrides(raw, set_))
    rows = [e for e in found.explained if not given or e.origin != "default"]
    if as_json:
        document = [
            {
                "name": e.name,
                "value": e.value,
                "origin": e.origin,
                "component": e.component,
                "meaning": e.declaration.summary,
                "allowed": e.declaration.allowed,
                "unit": e.declaration.unit,
                "reloadable": e.declaration.reloadable,
            }
            for e in rows
        ]
        echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print_explained(found, rows)
    if found.problems:
        raise found.error()
    if used != sink:
        echo("No sink is given: waltap run needs [sink] or --sink NAME:VALUE.", err=True)


def _print_explained(found: "ProfileValidation", rows: "list[ExplainedProperty]") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from waltap.cli.terminal import answers

    console = answers()
    way = [found.chosen.get(kind, "?") for kind in ("connector", "decoder", "format", "sink")]
    console.print(f"[bold]{escape(found.name)}[/]: {escape(' → '.join(way))}")
    for component, entries in groupby(rows, key=lambda entry: entry.component):
        table = Table(
            title=component, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
        )
        for heading in ("property", "value", "from", "meaning"):
            table.add_column(heading, overflow="fold")
        for entry in entries:
            unit = f" {entry.declaration.unit}" if entry.declaration.unit and entry.value else ""
            cells = (entry.name, entry.value + unit, entry.origin, entry.declaration.summary)
            style = "dim" if entry.origin == "default" else None
            table.add_row(*map(escape, cells), style=style)
        console.print(table)
    if found.ignored:
        console.print("Accepted, and without effect in waltap:")
        for name in found.ignored:
            console.print(f"  {name}: {found.reasons[name]}", markup=False)
    for warning in found.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")


def _print_code(profile: "Profile", table: str) -> None:
    """Print what decoder and format generate for a table, as Python that can be read by itself."""
    from waltap.base.generated import sources
    from waltap.changes.decode.relation import name_parts
    from waltap.cli.profile_source import connected
    from waltap.errors import ConfigurationError, PropertyProblem
    from waltap.plugins.host import Host

    parts = name_parts(table) or []
    with connected(profile, Host()) as (connector, stages):
        relation = connector.catalogue.relation(*parts) if len(parts) == 2 else None
        if relation is None:
            raise ConfigurationError(
                [
                    PropertyProblem(
                        "--code",
                        f"finds no table {table!r}",
                        allowed="schema.table, e.g. public.orders",
                    )
                ],
                origin="the command line",
            )
        decoder = connector.decoder()
        if decoder is not None:
            decoder.prepare(relation)
        for each in stages.formats:
            each.prepare(relation)
        found = list(sources())
    for name, text in found:
        echo(f"# {name}\n{text}")
    if not found:
        echo("Nothing is generated for this table by this decoder and sink.", err=True)


# ``waltap doctor``: looks at the database before a start and says what fixes what it finds.

MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[red]error[/]"}


def doctor(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Go through the checks that `waltap run` goes through before it makes anything, and change nothing.

    Exit code 1 when there are errors, which a run would end with.
    """
    found = _checks(source, sink, set_)
    if as_json:
        echo(json.dumps([_check_document(check) for check in found], indent=2))
    else:
        _print_checks(found)
    if any(check.verdict == "error" for check in found):
        raise typer.Exit(1)


def _checks(source: str, sink: str | None, set_: list[str] | None) -> "list[PreflightCheck]":
    from waltap.cli.profile_source import connected
    from waltap.config.resolve import resolve
    from waltap.errors import ConfigurationError
    from waltap.pipeline.setup.preflight import checks
    from waltap.plugins.host import Host
    from waltap.ports.source.connector import PreflightCheck

    host, raw = Host(), read(source)
    profile = resolve(raw, host, sink=any_sink(raw, sink), overrides=overrides(raw, set_))
    with connected(profile, host) as (connector, stages):
        found = checks(stages, connector, locked=False)
    try:
        raw.require_running()
    except ConfigurationError as error:
        problem = error.problems[0]
        check = PreflightCheck(
            name=problem.property,
            verdict="error",
            found=f"{problem.value}: the file keeps this connector from running",
            remedy=f"Take {problem.property} out to run it here",
        )
        return [check, *found]
    return found


def _check_document(check: "PreflightCheck") -> dict[str, str]:
    document = {
        "name": check.name,
        "verdict": check.verdict,
        "found": check.found,
        "remedy": check.remedy,
    }
    return document if check.error is None else {**document, "code": check.error.code}


def _print_checks(checks: "list[PreflightCheck]") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from waltap.cli.terminal import answers

    table = Table("", "check", "found", box=box.SIMPLE_HEAD)
    table.columns[2].overflow = "fold"
    for check in checks:
        found = escape(check.found)
        if check.remedy and check.verdict != "ok":
            found += f"\n[cyan]→ {escape(check.remedy)}[/]"
        table.add_row(MARKS.get(check.verdict, check.verdict), escape(check.name), found)
    console = answers()
    console.print(table)
    errors = sum(check.verdict == "error" for check in checks)
    warnings = sum(check.verdict == "warning" for check in checks)
    warned = f"{warnings} warning{'' if warnings == 1 else 's'}"
    if errors:
        wrong = f"{errors} error{'' if errors == 1 else 's'}"
        console.print(f"[red]{wrong} to fix before waltap can run[/], {warned}")
    else:
        console.print(f"[green]ready to run[/], {warned}")


UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def plan(
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
    from waltap.cli.profile_source import connected
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
        echo(json.dumps(_plan_document(plan, found, stages, rate), indent=2))
    elif as_sql:
        echo("\n".join(_sql(plan)))
    else:
        _print_plan(plan, found, stages, rate, types_too=types)
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


def _plan_document(
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


def _print_plan(
    plan: "SetupPlan",
    found: "list[PreflightCheck]",
    stages: "PipelineStages",
    rate: int,
    *,
    types_too: bool,
) -> None:
    from rich import box
    from rich.table import Table

    from waltap.cli.terminal import answers

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
