"""``waltap spark``: apply a change log, and query Spark's tables.

What needs pyspark is imported by the commands that start Spark.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore
from waltap.cli.profile_source import read
from waltap.cli.terminal import answers, command_group, draw_until_interrupted, echo, notices
from waltap.config.resolve import resolve
from waltap.plugins.host import Host
from waltap_sinks.changelog.reader import ChangeLog
from waltap_sinks.changelog.verification import named_store, profile_store
from waltap_sinks.comparison.commands import (
    PATIENCE_S,
    DsnOption,
    PatienceOption,
    TableOption,
    WithoutOption,
    connected,
    document,
    dsn_of,
    exit_code,
    print_comparison,
    print_json,
    publications_of,
    stored_lsn,
)
from waltap_spark.apply.resume_requests import How, ResumeRequests
from waltap_spark.cli.status import draw, status_of
from waltap_spark.config.properties import SparkProperties
from waltap_spark.driver.driver import asked_to_stop, run_driver
from waltap_spark.driver.settings import properties_of, settings_of
from waltap_spark.errors import TypeChanged
from waltap_spark.formats.choice import PARQUET, choice_of
from waltap_spark.session.failures import UNSAVED_OUTPUT, explained_failures
from waltap_spark.session.java import require_pyspark
from waltap_spark.session.session import quiet, start_session
from waltap_spark.sink.output_monitor import NO_COMMIT_YET, OutputMonitor, drawn
from waltap_spark.state.output import OutputState, SparkOutput

application = command_group(
    "Apply a change log to Spark's tables; show, query, compare and repair these tables."
)

OutputArgument = Annotated[
    str, typer.Argument(metavar="OUTPUT", help="The spark sink's path, or the folder tables in it.")
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="FILE", help="Profile whose storage.… and spark.… settings are used."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="spark.NAME=VALUE",
        help="A setting of Spark's, such as spark.jars.packages; repeatable.",
    ),
]
MasterOption = Annotated[
    str, typer.Option("--master", metavar="URL", help="Master of the Spark session.")
]


@application.command()
def apply(
    changelog: Annotated[
        str,
        typer.Option(
            "--changelog",
            metavar="PATH",
            help="Folder or URI of the change log, or the profile that writes it. Its storage.… "
            "settings count; give others by --set.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", metavar="DIR", help="Folder of the tables.")],
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Master of the Spark session: local[*]."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Apply the present changes, then end.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(
            min=0,
            max=86_400,
            metavar="SECONDS",
            help="How long --once waits for another process that uses the tables (WT-5203).",
        ),
    ] = 60.0,
    type_change: Annotated[
        str | None,
        typer.Option(
            metavar="ACTION", help="A type that does not fit: fail, or string (keep as text)."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A property of the spark sink, as in its profile: format, mode, spark.…; repeatable.",
        ),
    ] = None,
) -> None:
    """Keep tables up to date with a change log, until SIGINT or SIGTERM.

    The spark sink runs this next to the engine. Run it yourself, or by a scheduler with --once,
    if the sink has applier = none. One process per output: a second one waits until the first has
    ended, with --once for --wait seconds. In an object store this holds for one user on one
    machine only: do not start another elsewhere.
    """
    given = {"master": master, "type_change": type_change}
    files = named_store(changelog)
    properties = properties_of(
        set_ or [],
        output,
        settings_of(files.storage, StorageProperties),
        **{name: value for name, value in given.items() if value is not None},
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    rows = run_driver(
        files,
        output,
        properties,
        stopping=(lambda: True) if once else asked_to_stop(),
        patience_s=wait if once else 0.0,
        once=once,
    )
    notices().print(f"{rows:,} rows applied to {output}")


@application.command()
def status(
    output: OutputArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: ProfileOption = None,
) -> None:
    """Show tables with their rows, positions and problems. Needs no Java.

    The number of rows of a table in a catalogue is not shown.
    """
    found = _output(output, _storage(profile))
    shown = status_of(found, _applied(found))
    if as_json:
        echo(msgspec.json.encode(shown).decode())
    else:
        draw(shown, answers())


@application.command()
def top(
    output: OutputArgument,
    every: Annotated[
        float,
        typer.Option("--every", metavar="S", min=0.2, max=3600, help="Seconds between two looks."),
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    profile: ProfileOption = None,
) -> None:
    """Show rows of each commit by table, and waiting rows, live.

    It reads commits and the change log that they follow, without Spark. Ctrl-C ends it. Needs no
    Java.
    """
    storage = _storage(profile)
    found = _output(output, storage)
    watch = OutputMonitor(found)

    def progress() -> Any:
        return watch.progress(time.time_ns() // 1_000_000)

    def view() -> Any:
        nonlocal found, watch
        shown = progress()
        if not shown.batches:
            # only the first commit shows whether the tables are in OUTPUT or in a folder of it
            found = _output(output, storage)
            watch = OutputMonitor(found)
            shown = progress()
        return drawn(shown, found.location)

    if as_json:
        echo(msgspec.json.encode(progress()).decode())
    elif once:
        answers().print(view())
    else:
        draw_until_interrupted(view, every)


@application.command()
def maintain(
    output: OutputArgument,
    master: MasterOption = "local[*]",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of Spark's (spark.…), or retention.seconds; repeatable.",
        ),
    ] = None,
    profile: ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compact small files, and remove files that are no longer used.

    The applier does it by itself, when it is due; this does it now, while no applier runs. Files
    of earlier Parquet commits stay for retention.seconds (--set), versions of Delta Lake and
    Iceberg for format.retention.hours as the applier had it at its last commit.
    """
    from waltap_spark.apply.maintenance import maintain as maintained
    from waltap_spark.apply.maintenance import take

    found = _output(output, _storage(profile))
    retention_s = properties_of(set_ or [], found.location).retention_s
    take(found)  # fails without starting Spark where another process uses the tables
    found.close()
    table = Table()
    for title in ("table", "files before", "files now", ""):
        table.add_column(title, justify="right" if title.startswith("files") else "left")
    with _spark("waltap maintain", found, master, set_, profile) as spark:
        results = list(maintained(spark, found, retention_s=retention_s))
    if as_json:
        echo(msgspec.json.encode(results).decode())
        return
    for each in results:
        counts = ("", "") if each.skipped else (f"{each.before:,}", f"{each.after:,}")
        table.add_row(escape(each.table), *counts, escape(each.skipped))
    answers().print(table)


@application.command()
def resume(
    output: OutputArgument,
    table: Annotated[str, typer.Argument(help="The suspended table: SCHEMA.TABLE.")],
    as_text: Annotated[
        bool,
        typer.Option("--cast-to-text", help="Store types that do not fit as text, in this table."),
    ] = False,
    full_refresh: Annotated[
        bool,
        typer.Option(
            "--full-refresh", help="Discard the table's rows, and begin with later changes."
        ),
    ] = False,
    skip_damaged: Annotated[
        bool,
        typer.Option(
            "--skip-damaged", help="Continue without the rows of the named damaged segment."
        ),
    ] = False,
    profile: ProfileOption = None,
) -> None:
    """Resume a suspended table at its position; other tables stay unchanged.

    The applier does it within seconds; if none runs, the next one does, or `waltap spark apply
    --once`. After --full-refresh and --skip-damaged a new snapshot adds missing rows:
    `waltap snapshot PROFILE TABLE --blocking`. --full-refresh needs Parquet. Needs no Java.
    """
    if as_text + full_refresh + skip_damaged > 1:
        text = "--cast-to-text, --full-refresh and --skip-damaged are three ways: choose one"
        raise typer.BadParameter(text)
    found = _output(output, _storage(profile))
    state = found.state()
    chosen = found.table(table, state)
    if not chosen.failed:
        notices().print(f"{chosen.name} is not suspended")
        return
    if full_refresh and state is not None and state.format != PARQUET:
        raise typer.BadParameter("is for tables in Parquet", param_hint="--full-refresh")
    if skip_damaged and not chosen.damaged:
        text = f"is for damaged segments, and {chosen.name} is suspended for another reason"
        raise typer.BadParameter(text, param_hint="--skip-damaged")
    if as_text and TypeChanged.code not in chosen.failed:
        text = f"is for types that do not fit, and {chosen.name} is suspended for another reason"
        raise typer.BadParameter(text, param_hint="--cast-to-text")
    how: How = (
        "text" if as_text else "anew" if full_refresh else "over" if skip_damaged else "again"
    )
    ResumeRequests(found).ask(chosen, how)
    notices().print(
        f"{chosen.name} is tried again from {chosen.log_position}; `waltap spark status {output}` "
        "shows when it continues",
        highlight=False,
    )
    if full_refresh or skip_damaged:
        missing = f"rows of {chosen.damaged}" if skip_damaged else "rows from before"
        notices().print(
            f"{missing} come with a new snapshot: `waltap snapshot PROFILE {chosen.name} --blocking`",
            highlight=False,
        )


@application.command()
def sql(
    output: OutputArgument,
    query: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUERY]",
            help="Spark SQL; a view is called as its table, or SCHEMA_TABLE. Without it: a prompt.",
        ),
    ] = None,
    master: MasterOption = "local[*]",
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=1, help="Most rows to show.")
    ] = 50,
    allow_stale: Annotated[
        bool,
        typer.Option(
            "--allow-stale",
            help="Read suspended tables, and tables that need a new snapshot, as they are.",
        ),
    ] = False,
    set_: SetOption = None,
    profile: ProfileOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows of QUERY as a JSON list.")
    ] = False,
) -> None:
    """Query the current tables; NAME_changes is a table's history.

    The view of public.orders is orders; if two schemas have a table of that name, public_orders
    and sales_orders. View names are printed first. Without a query there is a prompt with history
    and completion (Tab); each query sees the newest tables.
    """
    from waltap_spark.cli.queries import SqlQueries

    if as_json and query is None:
        raise typer.BadParameter("needs a QUERY", param_hint="--json")
    found = _output(output, _storage(profile))
    _applied(found)
    with _spark("waltap sql", found, master, set_, profile) as spark:
        queries = SqlQueries(spark, found.store, rows, allow_stale=allow_stale, as_json=as_json)
        queries.begin()
        if query is None:
            queries.prompt()
        else:
            queries.answer(query)


@application.command()
def verify(
    output: OutputArgument,
    dsn: DsnOption = None,
    table: TableOption = None,
    without: WithoutOption = None,
    patience: PatienceOption = PATIENCE_S,
    master: MasterOption = "local[*]",
    set_: SetOption = None,
    profile: ProfileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare source tables with Spark's, as ``waltap verify`` does.

    Exit code 1 when rows differ, or Spark lacks a column that --without does not name. Exit code 5
    when the only differences are late tables: suspended, or not at the source's position in time.
    --profile gives the source without --dsn; only the rows and columns that its publications
    publish count, and if spark is its only sink, a difference of an idle pipeline is not late. It
    names tables that Spark lacks; only ``waltap verify PROFILE`` knows whether they are captured.
    """
    from waltap_spark.read.live import open_tables
    from waltap_spark.read.verify import compare, missing_tables

    known = None if profile is None else resolve(read(profile), Host())
    source = dsn or (None if known is None else dsn_of(known))
    if source is None:
        raise typer.BadParameter("is needed without --profile", param_hint="--dsn")
    found = _output(output, _storage(profile))
    writes = known is not None and not known.branches and _writes(known.sink.properties, found)
    session = _spark("waltap verify", found, master, set_, profile)
    with connected(source) as connection, session as spark:
        tables = open_tables(spark, found.store)
        results = compare(
            connection,
            tables,
            table,
            without=without or (),
            patience_s=patience,
            publications=() if known is None else publications_of(known),
            log=ChangeLog(profile_store(profile)) if profile is not None and writes else None,
            stored_offset=lambda: None if known is None else stored_lsn(known),
        )
        unknown = [] if table else missing_tables(connection, tables, without or ())
    if as_json:
        print_json([document(results, "Spark", wanted=table or (), unknown=unknown)])
        raise typer.Exit(exit_code(results, table or ()))
    raise typer.Exit(print_comparison(results, "Spark", wanted=table or (), unknown=unknown))


@contextlib.contextmanager
def _spark(
    name: str, found: SparkOutput, master: str, pairs: list[str] | None, profile: str | None
) -> Iterator[Any]:
    """Start Spark for the block, with the format's settings.

    ``pairs`` win over the settings of ``profile``. Raises: ConfigurationError, JavaMissing,
    PysparkUnfit, JvmEnded, SparkRefused, and errors of the format.
    """
    # the format of the last commit decides which jars the session needs
    given = [*_spark_pairs(profile, found), *(pairs or [])]
    settings = properties_of(given, found.location).settings
    choice = choice_of(found.state())
    require_pyspark()
    with (
        quiet() as notes,
        explained_failures(settings.get("spark.driver.memory"), log=UNSAVED_OUTPUT),
    ):
        with notices().status("starting Spark (about 5 s)"):
            spark = start_session(
                name,
                master=master,
                settings=settings,
                notes=notes,
                more=choice.settings,
                storage=found.store.storage,
            )
        try:
            yield spark
        finally:
            spark.stop()


def _storage(profile: str | None) -> StorageProperties | None:
    """Return the storage properties of ``profile``.

    Raises: as `profile_store`.
    """
    return None if profile is None else profile_store(profile).storage


def _spark_pairs(profile: str | None, found: SparkOutput) -> list[str]:
    """Return a sink's spark.… settings as NAME=VALUE.

    The sink is the one that writes ``found``, or else the profile's first spark sink.
    """
    sinks = () if profile is None else resolve(read(profile), Host()).sinks
    known = [sink.properties for sink in sinks if isinstance(sink.properties, SparkProperties)]
    known.sort(key=lambda each: not _writes(each, found))
    return [f"{name}={value}" for each in known[:1] for name, value in each.settings.items()]


def _writes(properties: object, found: SparkOutput) -> bool:
    """Return whether a sink with these properties writes ``found``."""
    place = found.store.uri("").rstrip("/")
    return isinstance(properties, SparkProperties) and (
        FileStore(properties.path, properties).uri("").rstrip("/")
        in {place, place.removesuffix("/tables")}
    )


def _applied(found: SparkOutput) -> OutputState:
    """Return the newest commit's state; end the command without one."""
    state = found.state()
    if state is None:
        notices().print(f"{found.location}: {NO_COMMIT_YET}", highlight=False)
        raise typer.Exit(1)
    return state


def _output(path: str, storage: StorageProperties | None) -> SparkOutput:
    """Return the tables at ``path`` or in a sink's path above."""
    if not path.strip():
        raise typer.BadParameter("is empty", param_hint="OUTPUT")
    found = SparkOutput(FileStore(path, storage))
    inner = SparkOutput(found.store.reached_alike(f"{path.rstrip('/')}/tables"))
    if not found.store.folders("_waltap") and inner.store.folders("_waltap"):
        return inner
    if "://" not in path and not Path(path).exists():
        text = f"{path} does not exist: a pipeline makes it when it starts"
        raise typer.BadParameter(text, param_hint="OUTPUT")
    return found
