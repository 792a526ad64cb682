"""Send signals to a running pipeline (``signal``, ``snapshot``)."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from waltap.base.text import printable, sql_name
from waltap.changes.decode.relation import schema_and_table
from waltap.cli.profile_source import FileArgument, Json, SetOption, at_rest, connected, resolved
from waltap.cli.terminal import command_group, echo
from waltap.config.profile import Profile
from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem, usage_error
from waltap.pipeline.runtime.lock import PipelineLock
from waltap.ports.signals.signal import SnapshotRequest
from waltap.ports.snapshot.incremental_state import IncrementalState
from waltap.ports.source.connector import Connector
from waltap.ports.source.roles import published_by, tables_of
from waltap.services.control import PipelineNotRunning, SignalRequest, ask

if TYPE_CHECKING:
    from waltap.pipeline.engine.build import PipelineStages


WAIT_S = 10.0
Identifier = Annotated[
    str, typer.Option("--id", metavar="ID", help="The signal's id; by default one is made.")
]
Wait = Annotated[
    float,
    typer.Option(
        min=0, max=3600, metavar="SECONDS", help="How long to wait for the pipeline's answer."
    ),
]


def ask_for(
    profile: Profile,
    kind: str,
    data: Mapping[str, object] | str,
    *,
    identifier: str = "",
    wait_s: float = WAIT_S,
    as_json: bool = False,
    fails: bool = True,
) -> None:
    """Send a signal and print the answer.

    Raises: PipelineNotRunning, ControlSocketUnusable; typer.Exit with 1 where something was ignored,
    unless ``fails`` is False.
    """
    request = SignalRequest(
        kind=kind,
        identifier=identifier,
        data=data if isinstance(data, str) else dict(data),
        wait_ms=round(wait_s * 1000),
    )
    answer = ask(profile.state_dir, request)
    refused = answer.accepted is False or not answer.ok
    ignored = refused or bool(answer.reason)
    if as_json:
        echo(msgspec.json.encode(answer).decode())
    else:
        if refused:
            fate = f"was ignored: {answer.reason}"
        elif ignored:
            fate = f"was accepted in part: {answer.reason}"
        elif answer.accepted is None:
            fate = f"waits: the pipeline is in state {answer.state}"
        else:
            fate = "was accepted"
        echo(f"{profile.name}: signal {answer.identifier} ({kind}) {fate}", err=ignored)
    if ignored and fails:
        raise typer.Exit(1)


def snapshot(
    file: FileArgument,
    tables: Annotated[
        list[str],
        typer.Argument(metavar="TABLE…", help="schema.table, or a pattern of such names."),
    ],
    blocking: Annotated[
        bool, typer.Option("--blocking", help="Read them whole, while the stream waits.")
    ] = False,
    condition: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="SQL",
            help="Which rows: a condition such as 'id > 100'; with --blocking a SELECT.",
        ),
    ] = "",
    key: Annotated[
        str, typer.Option("--key", metavar="COLUMN", help="Read in the order of this column.")
    ] = "",
    identifier: Identifier = "",
    wait: Wait = WAIT_S,
    set_: SetOption = None,
) -> None:
    """Read tables again while the pipeline runs, on its machine and as its user.

    The change log and Spark's tables replace the rows of a table that --blocking reads completely;
    otherwise rows that are gone in the source stay. The log of the run shows which tables are read,
    and when each is finished.
    """
    profile, _ = at_rest(file, set_)
    data: dict[str, object] = {
        "type": "blocking" if blocking else "incremental",
        "data-collections": tables,
    }
    if condition:
        data["additional-conditions"] = [
            {"data-collection": table, "filter": condition} for table in tables
        ]
    if key:
        data["surrogate-key"] = key
    ask_for(profile, "execute-snapshot", data, identifier=identifier, wait_s=wait)


def signal(
    file: FileArgument,
    kind: Annotated[
        str, typer.Argument(metavar="TYPE", help="execute-snapshot, stop-snapshot, log, …")
    ],
    data: Annotated[
        str, typer.Argument(metavar="[DATA]", help="A JSON object; - reads it from standard input.")
    ] = "",
    identifier: Identifier = "",
    wait: Wait = WAIT_S,
    set_: SetOption = None,
    as_json: Json = False,
) -> None:
    """Send a signal to the running pipeline, on its machine and as its user.

    Exit code 1: the signal, or a part, was rejected; the reason is printed. A signal that waits, such
    as for the end of the initial snapshot, is kept until the run ends.
    """
    profile, _, _ = resolved(file, set_)
    try:
        text = typer.get_text_stream("stdin").read() if data == "-" else data
    except UnicodeDecodeError as cause:
        raise usage_error("DATA", "is not UTF-8 text") from cause
    ask_for(profile, kind, text, identifier=identifier, wait_s=wait, as_json=as_json)


Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="schema.table")]
TableId = tuple[str, str]

tables = command_group("Add tables to a pipeline or remove them, also during a run.")


@tables.command()
def add(
    file: FileArgument,
    tables: Names,
    snapshot: Annotated[
        bool, typer.Option("--snapshot/--no-snapshot", help="Read the rows that are there already.")
    ] = True,
    set_: SetOption = None,
) -> None:
    """Stream tables that the profile captures and the publication lacks.

    For example new tables. SHARE locks wait for open transactions that wrote to the tables, at
    most snapshot.lock.timeout.ms each; new writers wait behind them. The rows are then read in
    chunks during streaming, or at the next start.
    """
    profile, host = at_rest(file, set_)
    with connected(profile, host) as (connector, stages):
        table_ids = _table_ids(tables, connector, stages)
        added = published_by(connector).publish(table_ids, wanted=True) or []
        first = stages.store.load() is None
        waiting = set[TableId]() if first else _unpublished(connector, table_ids)
        others = "is streamed by the first start" if first else "is streamed already"
        for table_id in table_ids:
            what = "is streamed from now on" if table_id in added else others
            what = "joins at the next start" if table_id in waiting else what
            echo(f"{profile.name}: {printable('.'.join(table_id))} {what}")
        streamed = [table_id for table_id in table_ids if table_id not in waiting]
        if snapshot and streamed:
            _read(profile, stages, streamed)


@tables.command()
def remove(file: FileArgument, tables: Names, set_: SetOption = None) -> None:
    """Take tables out of the publication, and end incremental snapshots of them.

    A profile that still captures them gets them back at its next start, where it keeps the publication
    itself: name them in table.exclude.list.
    """
    profile, host = at_rest(file, set_)
    with connected(profile, host) as (connector, stages):
        table_ids = _parsed(tables)
        removed = published_by(connector).publish(table_ids, wanted=False) or []
        others = "is not named in the publication"
        for table_id in table_ids:
            what = "is no longer streamed" if table_id in removed else others
            echo(f"{profile.name}: {printable('.'.join(table_id))} {what}")
        if removed:
            _forget(profile, stages, removed)
        captured = [".".join(p) for p in removed if stages.capture.captures(*p)]
    if captured:
        echo(
            f"{profile.name}: a start may add them again: table.exclude.list should name "
            + ",".join(re.escape(name) for name in captured)
        )


def _parsed(names: list[str]) -> list[TableId]:
    table_ids = {name: schema_and_table(name) for name in names}
    problems = [
        PropertyProblem("NAME", "is no name of a table", value=name, allowed="schema.table")
        for name, table_id in table_ids.items()
        if table_id is None
    ]
    if problems:
        raise ConfigurationError(problems, origin=COMMAND_LINE)
    return [table_id for table_id in table_ids.values() if table_id is not None]


def _table_ids(names: list[str], connector: Connector, stages: "PipelineStages") -> list[TableId]:
    """Return the existing, captured tables. Raises: ConfigurationError."""
    table_ids, there = _parsed(names), set(tables_of(connector).existing_tables().values())
    problems = []
    for schema, table in table_ids:
        name = f"{schema}.{table}"
        if (schema, table) not in there:
            problems.append(PropertyProblem("NAME", "there is no such table", value=name))
        elif not stages.capture.captures(schema, table):
            allowed = (
                "a table that the profile captures: change table.include.list, and start again"
            )
            problems.append(PropertyProblem("NAME", "is not captured", value=name, allowed=allowed))
    if problems:
        raise ConfigurationError(problems, origin=COMMAND_LINE)
    return table_ids


def _unpublished(connector: Connector, table_ids: list[TableId]) -> set[TableId]:
    """Return the tables that only a start can add to the publication."""
    published = published_by(connector)
    if not published.adds_tables():
        return set()
    there, streamed = tables_of(connector).existing_tables(), published.streamed_as()
    return set(table_ids) - {table_id for oid, table_id in there.items() if oid in streamed}


def _read(profile: Profile, stages: "PipelineStages", table_ids: list[TableId]) -> None:
    """Have the rows read, now or at the next start."""
    # The tables are added, also where their rows need another command.
    if _asked(profile, "execute-snapshot", table_ids, fails=False):
        return
    with _stored_queue(stages) as state:
        if state is None:
            echo(f"{profile.name}: the first start reads every table")
            return
        wanted = [
            SnapshotRequest(schema=schema, table=table, signal="waltap tables add")
            for schema, table in table_ids
        ]
        state.add(wanted, set(table_ids))
    echo(f"{profile.name}: the pipeline does not run; its next start reads the rows")


def _forget(profile: Profile, stages: "PipelineStages", table_ids: list[TableId]) -> None:
    """End reads of tables that are no longer streamed."""
    if _asked(profile, "stop-snapshot", table_ids):
        return
    with _stored_queue(stages) as state:
        if state is not None:
            requests = [*state.queue, *state.awaiting_stream]
            gone = set(table_ids)
            state.drop([r for r in requests if (r.schema, r.table) in gone])


def _asked(profile: Profile, kind: str, table_ids: list[TableId], *, fails: bool = True) -> bool:
    """Give the running pipeline a signal about tables; False when none runs."""
    named = {"data-collections": [sql_name(*table_id) for table_id in table_ids]}
    try:
        ask_for(profile, kind, named, fails=fails)
    except PipelineNotRunning:
        return False
    return True


@contextmanager
def _stored_queue(stages: "PipelineStages") -> Iterator[IncrementalState | None]:
    """Yield the stored incremental snapshots, and store them afterwards.

    None without an offset. Raises: PipelineRunning.
    """
    with PipelineLock(stages.profile.state_dir):
        offset = stages.store.load()
        if offset is None or offset.snapshot is not None:
            yield None
            return
        state = IncrementalState.restored(offset.signals)
        yield state
        signals = msgspec.to_builtins(state)
        stages.store.store(msgspec.structs.replace(offset, signals=signals))
