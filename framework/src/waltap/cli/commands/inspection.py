"""Inspect a profile and its database (``doctor``, ``explain``, ``plan``)."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from waltap.base.generated import sources
from waltap.base.text import ago, counted, duration, printable, size
from waltap.changes.arrow.column import strings
from waltap.changes.decode.relation import name_parts
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.cli.profile_source import (
    Json,
    SetOption,
    SinkOption,
    SourceArgument,
    any_sink,
    connected,
    gives_sink,
    overrides,
    read,
    resolved,
)
from waltap.cli.reference.types import schema_text
from waltap.cli.terminal import answers, echo
from waltap.config.namespace import ExplainedProperty, ValidationResult
from waltap.config.profile import Profile
from waltap.config.resolve import resolve, survey
from waltap.errors import (
    ConfigurationError,
    WaltapError,
    usage_error,
)
from waltap.plugins.host import Host
from waltap.ports.offsets.offset import Offset
from waltap.ports.source.connector import Connector, PlannedTable, PreflightCheck, SetupPlan
from waltap.ports.source.roles import DecodingSource, planned
from waltap.services.monitor.views import table

if TYPE_CHECKING:
    from waltap.config.layers import RawProfile
    from waltap.pipeline.engine.build import PipelineStages

SINK_NEEDED = "waltap run needs [sink] or --sink NAME:VALUE"


def explain(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    given: Annotated[
        bool, typer.Option("--given", help="Leave out properties that have their default.")
    ] = False,
    as_json: Json = False,
    code: Annotated[
        str | None,
        typer.Option(
            "--code",
            metavar="SCHEMA.TABLE",
            help="Print the code that is generated for a table instead.",
        ),
    ] = None,
) -> None:
    """Show every property of a profile: value, origin, meaning.

    Secrets are hidden. For a bad profile it shows the valid properties, then the problems: exit
    code 2. --code connects to the database and changes nothing.
    """
    raw = read(source)
    used = any_sink(raw, sink)
    if code is not None:
        # A table is published only by a run, so none is refused for its missing key.
        settings = {"publication.keyless.tables": "publish", **overrides(raw, set_)}
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
        echo(f"No sink is given: {SINK_NEEDED}.", err=True)


def _print_explained(found: ValidationResult, rows: list[ExplainedProperty]) -> None:
    console = answers()
    way = [found.chosen.get(kind, "?") for kind in ("connector", "decoder", "format", "sink")]
    console.print(found.name, style="bold", end="", markup=False)
    console.print(f": {' → '.join(way)}", markup=False)
    heads = ("property", "value", "from", "meaning")
    for component, entries in groupby(rows, key=lambda entry: entry.component):
        listed = list(entries)
        cells = [(e.name, _value(e), e.origin, e.declaration.summary) for e in listed]
        styles = ["dim" if e.origin == "default" else "" for e in listed]
        console.print(table(heads, cells, title=component, styles=styles))
    if found.ignored:
        console.print("Accepted, and without effect in waltap:")
        for name, why in found.ignored.items():
            console.print(f"  {name}: {why}", markup=False)
    for warning in found.warnings:
        console.print("[yellow]warning:[/]", end=" ")
        console.print(warning, markup=False)


def _value(entry: ExplainedProperty) -> str:
    """Return a value with its unit, and large ones converted."""
    unit = entry.declaration.unit
    if not unit or not entry.value:
        return entry.value
    text = f"{entry.value} {unit}"
    if unit in LARGER and entry.value.isdigit() and int(entry.value) >= 10_000:
        text += f" ({LARGER[unit](int(entry.value))})"
    return text


LARGER = {"bytes": size, "ms": ago, "s": duration}


def _print_code(profile: Profile, name: str) -> None:
    """Print the code that decoder and format generate for a table."""
    parts = name_parts(name) or []
    with connected(profile, Host()) as (connector, stages):
        known = connector.catalogue
        relation = known.relation(*parts) if known is not None and len(parts) == 2 else None
        if relation is None:
            allowed = "schema.table, e.g. public.orders"
            raise usage_error("--code", f"finds no table {name!r}", allowed=allowed)
        if isinstance(connector, DecodingSource):
            connector.decoder().prepare(relation)
        for each in stages.formats:
            each.prepare(relation)
        found = list(sources())
    for title, text in found:
        echo(f"# {title}\n{text}")
    if not found:
        echo("Nothing is generated for this table by this decoder and sink.", err=True)


COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def doctor(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    as_json: Json = False,
) -> None:
    """Run the checks of `waltap run`, and change nothing.

    Exit code 1: errors that would end a run.
    """
    found = _checks(source, sink, set_)
    if as_json:
        echo(json.dumps(list(map(_check_document, found)), indent=2))
    else:
        _print_checks(found)
    if any(check.verdict == "error" for check in found):
        raise typer.Exit(1)


def _checks(source: str, sink: str | None, set_: list[str] | None) -> list[PreflightCheck]:
    from waltap.pipeline.engine.preflight import checks

    profile, host, raw = resolved(source, set_, sink)
    with connected(profile, host) as (connector, stages):
        found = [*_sink_given(raw, sink), *checks(stages, connector, locked=False)]
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


def _sink_given(raw: "RawProfile", sink: str | None) -> list[PreflightCheck]:
    """Return a warning if no sink is given, so that the terminal is checked."""
    if gives_sink(raw, sink):
        return []
    found = "none is given, so the terminal is checked"
    return [PreflightCheck(name="sink", verdict="warning", found=found, remedy=SINK_NEEDED)]


def _check_document(check: PreflightCheck) -> dict[str, str]:
    code = {} if check.error is None else {"code": check.error.code}
    return {name: getattr(check, name) for name in ("name", "verdict", "found", "remedy")} | code


def _found(check: PreflightCheck) -> str:
    return check.found if check.error is None else f"{check.error.code}: {check.found}"


def _print_checks(checks: list[PreflightCheck]) -> None:
    rows = []
    for check in checks:
        found = Text(_found(check))
        if check.remedy and check.verdict != "ok":
            found.append(f"\n→ {check.remedy}", "cyan")
        rows.append((Text(check.verdict, COLOURS.get(check.verdict, "")), check.name, found))
    console = answers()
    console.print(table(("", "check", "found"), rows))
    errors = sum(check.verdict == "error" for check in checks)
    warnings = sum(check.verdict == "warning" for check in checks)
    warned = f"{warnings} warning{'' if warnings == 1 else 's'}"
    if errors:
        wrong = f"{errors} error{'' if errors == 1 else 's'}"
        console.print(f"[red]{wrong} to fix before waltap can run[/], {warned}")
    else:
        console.print(f"[green]ready to run[/], {warned}")


def plan(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    types: Annotated[
        bool, typer.Option("--types", help="Show the type of each column in events.")
    ] = False,
    rate: Annotated[
        int,
        typer.Option(
            min=1, metavar="ROWS", help="Rows a second for the estimate of the snapshot's time."
        ),
    ] = 100_000,
    as_sql: Annotated[bool, typer.Option("--sql", help="Print only the SQL, for a DBA.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the objects and tables that a start would create and read.

    It connects and changes nothing. Exit code 1: a start would be refused.
    """
    from waltap.pipeline.engine.preflight import asked_of_the_stored_offset, checks

    profile, host, raw = resolved(source, set_, sink)
    with connected(profile, host) as (connector, stages):
        found = _sink_given(raw, sink)
        found += [each for each in checks(stages, connector, locked=False) if each.verdict != "ok"]
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


def _planned(connector: Connector, offset: Offset | None) -> SetupPlan | WaltapError:
    """Return the plan of a start, or its error."""
    try:
        return planned(connector, offset)
    except WaltapError as error:
        return error


def _sql(plan: SetupPlan) -> Iterator[str]:
    if plan.by_others:
        yield "-- first, as a superuser or the owner of the named objects"
        yield from (each if each.startswith("--") else f"{each};" for each in plan.by_others)
    if plan.statements:
        yield "-- then `waltap run` does this, as the role of the profile"
        yield from (f"{each};" for each in plan.statements)
    if plan.slot is not None:
        yield "-- and this, on a replication connection; the server keeps WAL from then on"
        yield f"-- {plan.slot}"


def _columns(table: PlannedTable, types: TypeRegistry) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, type, Connect schema and Arrow type of each column.

    JSON and Avro have the Connect schema, "" for an omitted column; the change log and Spark tables have
    the Arrow type.
    """
    for column in table.relation.columns:
        of_type = column.data_type.name if column.data_type is not None else str(column.type_oid)
        mapping = types.of(table.relation, column)
        if mapping is None:
            yield column.name, of_type, "", ""
        else:
            arrow = mapping.arrow or strings()
            yield column.name, of_type, schema_text(mapping.schema), str(arrow.type())


def _before(table: PlannedTable, stages: "PipelineStages") -> str:
    """Return the replica identity and the old values in updates and deletes."""
    identity = stages.relations.identity(table.relation)
    return f"{identity.name.upper()}: {identity.before}"


def _key(table: PlannedTable, stages: "PipelineStages") -> list[str]:
    """Return the columns of the events' key."""
    columns = table.relation.columns
    return [columns[index].name for index in stages.capture.keys(table.relation)]


def _mode(table: PlannedTable, stages: "PipelineStages") -> str:
    """Return a table's form in sinks, "" for one form."""
    parts = (
        sink.spec.describe_table(sink.properties, table.relation.name)
        for sink in stages.profile.sinks
        if sink.spec.describe_table
    )
    return "; ".join(dict.fromkeys(parts))


def _plan_document(
    plan: SetupPlan, found: list[PreflightCheck], stages: "PipelineStages", rate: int
) -> dict[str, Any]:
    rows = sum(table.rows or 0 for table in plan.tables if table.read)
    return {
        "statements": plan.statements,
        "by_others": plan.by_others,
        "slot": plan.slot,
        "problems": [_check_document(check) for check in found],
        "snapshot": {"rows": rows, "seconds": round(rows / rate, 1)},
        "tables": [
            {
                "table": table.relation.name,
                "key": _key(table, stages),
                "before": _before(table, stages),
                "mode": _mode(table, stages),
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
    plan: SetupPlan,
    found: list[PreflightCheck],
    stages: "PipelineStages",
    rate: int,
    *,
    types_too: bool,
) -> None:
    console = answers()
    for check in found:
        remedy = [f"  → {check.remedy}"] if check.remedy else []
        _print_lines(console, [f"{check.verdict}: {check.name}: {_found(check)}", *remedy])
    made = [*plan.statements, *((plan.slot,) if plan.slot else ())] or ["nothing"]
    for title, statements in (
        ("Run first, as a superuser or the owner of the named objects", plan.by_others),
        ("The start makes", made),
    ):
        if statements:
            console.print(f"{title}:", style="bold")
            _print_lines(console, (f"  {each}" for each in statements))
    modes = [_mode(each, stages) for each in plan.tables]
    more = ["mode"] if any(modes) else []
    rows = [
        (
            each.relation.name,
            ", ".join(_key(each, stages)),
            "" if each.rows is None else f"{each.rows:,}",
            "" if each.bytes is None else size(each.bytes),
            "yes" if each.read else "",
            _before(each, stages),
            *([form] if more else []),
        )
        for each, form in zip(plan.tables, modes, strict=True)
    ]
    console.print(table(("table", "key", "rows", "size", "read", "before", *more), rows))
    read_ = [each for each in plan.tables if each.read]
    if read_:
        octets = size(sum(each.bytes or 0 for each in read_))
        known = [each.rows for each in read_ if each.rows is not None]
        text = f"Snapshot: {counted(len(read_), 'table')}, {octets}"
        if known:
            count = sum(known)
            spent = duration(max(1, count / rate))
            text += f", about {counted(count, 'row')}; about {spent} at {rate:,} rows a second"
        else:
            text += "; the server has not counted their rows yet"
        console.print(text)
    for each in plan.tables if types_too else ():
        columns = [
            (name, of_type, schema or "left out", arrow)
            for name, of_type, schema, arrow in _columns(each, stages.types)
        ]
        heads = ("column", "type", "JSON and Avro", "Arrow")
        console.print(table(heads, columns, title=each.relation.name))


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    # Statements are copied from a terminal, so no line is broken.
    for line in lines:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
