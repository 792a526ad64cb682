"""``waltap verify`` and ``waltap sql``: compare destinations with their source."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltap.base.property import declarations
from waltap.base.text import printable
from waltap.changes.capture.capture import CaptureRules
from waltap.cli.profile_source import FileArgument, Json, SetOption, overrides, read
from waltap.cli.terminal import answers, command_group, echo, notices
from waltap.config.profile import Component, Profile
from waltap.config.resolve import resolve
from waltap.errors import (
    ConfigurationError,
    ConnectionLost,
    OffsetError,
    SinkError,
    SourceError,
    WaltapError,
    usage_error,
)
from waltap.plugins.host import Host
from waltap.ports.offsets.file_store import FileOffsetStore
from waltap.ports.offsets.state_folder import DEAD_LETTERS, OFFSET
from waltap.ports.sink.verification import OffsetAwareSource, TableComparison, VerificationSource
from waltap.ports.specs import SinkSpec
from waltap.services.dead_letters.store import DeadLetterStore
from waltap_sinks.comparison.compare import compare
from waltap_sinks.comparison.differences import (
    TableDifferences,
    comparison_table,
    with_dead_letters,
    write_surplus,
)
from waltap_sinks.comparison.source import CaptureScope

if TYPE_CHECKING:
    from psycopg import Connection


DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn", metavar="DSN", help="The source: postgres://user@host/db or key=value pairs."
    ),
]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="SCHEMA.TABLE", help="Compare only this one; repeatable."),
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="COLUMN",
        help="Leave out a column, SCHEMA.TABLE.COLUMN, or a whole SCHEMA.TABLE; repeatable.",
    ),
]
PatienceOption = Annotated[
    float, typer.Option(metavar="S", min=0, help="Seconds to wait for rows on their way.")
]

PATIENCE_S = 30.0

# Exit code: rows differ or were not all compared.
DIFFERENT = 1

# Exit code: the compared tables are equal, and others were late.
LAGGING = 5

# Most unknown tables that are named.
NAMED = 10

# Properties of a connector → names of libpq.
LIBPQ = {
    "database.hostname": "host",
    "database.port": "port",
    "database.user": "user",
    "database.password": "password",
    "database.dbname": "dbname",
    "database.sslmode": "sslmode",
    "database.sslcert": "sslcert",
    "database.sslkey": "sslkey",
    "database.sslpassword": "sslpassword",
    "database.sslrootcert": "sslrootcert",
}

application = command_group("Compare what a pipeline wrote with its source.")
sql_application = command_group(
    "Compare a target of the sink sql with its source; move its sequences."
)


@sql_application.command()
@application.command()
def verify(
    file: FileArgument,
    dsn: DsnOption = None,
    table: TableOption = None,
    without: WithoutOption = None,
    patience: PatienceOption = PATIENCE_S,
    sink: Annotated[
        str | None, typer.Option("--sink", metavar="NAME", help="Of several sinks, only this one.")
    ] = None,
    set_: SetOption = None,
    as_json: Json = False,
) -> None:
    """Compare captured tables with a destination, row by row.

    Source and destination may change during this. Without --dsn the profile gives the source.
    Exit code 1: rows differ (also because of dead letters), or the destination lacks a column or a
    table with rows that --without does not name, or one of several sinks keeps no rows. Exit code 5:
    nothing differs, but some tables are late, so that they were not compared. A destination that
    fails is reported last.
    """
    raw = read(file)
    profile = resolve(raw, Host(), overrides=overrides(raw, set_))
    letters = profile.state_dir / DEAD_LETTERS
    codes, dead_letters = [0], DeadLetterStore(letters).all()
    documents, failure = [], None
    for name, results in _comparisons(
        profile, dsn or dsn_of(profile), sink, table or (), without or (), patience, captured=True
    ):
        if isinstance(results, WaltapError):
            _say_failed(name, results, quiet=as_json)
            codes.append(DIFFERENT)
            failure = failure or (results if isinstance(results, SinkError) else None)
            continue
        mine = with_dead_letters(results, dead_letters, name if profile.branches else "")
        if as_json:
            codes.append(exit_code(mine, wanted=table or ()))
            documents.append(document(mine, name, wanted=table or ()))
        else:
            codes.append(print_comparison(mine, name, wanted=table or ()))
        _say_where(profile, name, mine, quiet=as_json)
    if as_json:
        print_json(documents)
    if failure is not None:
        raise failure
    raise typer.Exit(DIFFERENT if DIFFERENT in codes else max(codes))


@sql_application.command()
def sequences(file: FileArgument) -> None:
    """Move the sequences of a PostgreSQL target after their columns' values.

    For the moment in which applications begin to write there; no sequence is moved back.
    """
    from waltap_sinks.sql.properties import SqlProperties
    from waltap_sinks.sql.verification import PostgresVerification, open_verification_source

    profile = resolve(read(file), Host())
    properties = profile.sink.properties
    if not isinstance(properties, SqlProperties) or not properties.url.startswith("postgres"):
        raise usage_error(
            "sink.type", "is not the sink sql with a PostgreSQL target", allowed="sql"
        )
    source = open_verification_source(properties, profile.name)
    assert isinstance(source, PostgresVerification)
    with contextlib.closing(source):
        moved = source.move_sequences()
    for sequence, last in moved:
        answers().print(f"{sequence}: {last}")
    if not moved:
        answers().print("every sequence is where its rows are")


def _comparisons(
    profile: Profile,
    dsn: str,
    sink: str | None,
    tables: Sequence[str],
    without: Sequence[str],
    patience_s: float,
    *,
    captured: bool = False,
) -> Iterator[tuple[str, list[TableDifferences] | WaltapError]]:
    """Compare each destination and yield its name with the result.

    Of several destinations, those that cannot be read yield the reason.
    """
    chosen = _chosen(profile, sink)
    with connected(dsn) as source:
        for name, component in chosen:
            try:
                with contextlib.closing(_opened(profile, component)) as destination:
                    results: list[TableDifferences] | WaltapError = compare(
                        source,
                        destination,
                        tables=tables,
                        without=without,
                        patience_s=patience_s,
                        captured=captured_for(profile, name) if captured else None,
                        publications=publications_of(profile),
                    )
            except (ConfigurationError, SinkError) as error:
                if len(chosen) == 1:
                    raise
                results = error
            yield name, results


def _say_failed(name: str, error: WaltapError, *, quiet: bool) -> None:
    console = notices() if quiet else answers()
    what = error.problems[0].what if isinstance(error, ConfigurationError) else error.problem
    console.print(f"{printable(name)} was not compared: {printable(what)}", markup=False)


def _say_where(
    profile: Profile, name: str, found: "Sequence[TableDifferences]", *, quiet: bool
) -> None:
    """Write the surplus rows to files and print where they are.

    ``quiet`` prints to standard error, since standard output is a document.
    """
    console = notices() if quiet else answers()

    try:
        paths = write_surplus(profile, name, found)
    except OSError as error:
        text = f"rows that only {name} has cannot be listed in a file: {error.strerror}"
        console.print(text, markup=False)
        return
    for each in found:
        if each.table in paths:
            many, path = len(each.surplus_keys), paths[each.table]
            text = f"all {many} rows of {printable(each.table)} that only {name} has: {path}"
            console.print(text, markup=False, soft_wrap=True)


def print_comparison(
    results: "Sequence[TableDifferences]",
    name: str,
    *,
    wanted: "Sequence[str]" = (),
    unknown: "Sequence[str]" = (),
) -> int:
    """Print the destination's result and return the exit code.

    It is 0 if all tables are equal, else `DIFFERENT` or `LAGGING`. ``unknown`` are tables with rows
    that the destination lacks; only the profile knows whether they are captured.
    """
    answers().print(comparison_table(results, name))
    lacks = _absent(results, wanted)
    for each in lacks:
        answers().print(f"{printable(each)} is not in {name}", markup=False)
    if not results:
        answers().print(f"no table of this pipeline is in {name}")
    if unknown:
        some = ", ".join(map(printable, unknown[:NAMED])) + (", …" if len(unknown) > NAMED else "")
        answers().print(
            f"{len(unknown)} tables of the source that have rows are not in {name}: {some}; whether they "
            "are captured, and so a difference, the profile knows: waltap verify PROFILE",
            markup=False,
        )
    left_out = sorted({column for each in results for column in each.left_out})
    left_out += [each.table for each in results if each.absent and each.verdict == "different"]
    if left_out:
        names = " ".join(f"--without {printable(column)}" for column in left_out)
        answers().print(f"not compared; name what is meant to be left out: {names}", markup=False)
    if any(each.dead_letters for each in results):
        answers().print(
            "rows were refused: waltap dead-letters list FILE says why, and dead-letters redeliver FILE "
            "delivers them when that is mended",
            markup=False,
        )
    if any(each.verdict == "late" for each in results):
        answers().print("tables that are late were not compared: verify again when they have come")
    return exit_code(results, wanted)


def _absent(results: "Sequence[TableDifferences]", wanted: "Sequence[str]") -> list[str]:
    return [each for each in wanted if each not in {found.table for found in results}]


def exit_code(results: "Sequence[TableDifferences]", wanted: "Sequence[str]" = ()) -> int:
    """Return 0 if all tables are equal, else `DIFFERENT` or `LAGGING`."""
    differ = any(each.verdict == "different" or each.left_out for each in results)
    if _absent(results, wanted) or not results or differ:
        return DIFFERENT
    return LAGGING if any(each.verdict == "late" for each in results) else 0


def document(
    results: "Sequence[TableDifferences]",
    name: str,
    *,
    wanted: "Sequence[str]" = (),
    unknown: "Sequence[str]" = (),
) -> dict[str, Any]:
    """Return the comparison with the destination ``name`` as JSON values."""
    shown = [field.name for field in fields(TableDifferences) if field.repr]
    return {
        "destination": name,
        "tables": [
            {"verdict": each.verdict} | {field: getattr(each, field) for field in shown}
            for each in results
        ],
        "absent": _absent(results, wanted),
        "unknown": list(unknown),
    }


def print_json(documents: list[dict[str, Any]]) -> None:
    """Print the comparisons of all destinations as one JSON list."""
    echo(json.dumps(documents, indent=2))


def captured_for(profile: Profile, sink: str) -> CaptureScope:
    """Return the tables that the destination ``sink`` should have."""
    capture = CaptureRules(profile.capture)
    own = [use for branch in profile.branches if branch.name == sink for use in branch.transforms]
    leaves_out = sorted(
        {u.spec.name for u in (*profile.transforms, *own) if not u.spec.preserves_changes}
    )
    properties = profile.connector.properties
    if getattr(properties, "publication_autocreate_mode", "") == "disabled":
        # Another program manages it.
        leaves_out.append("the publication")
    return CaptureScope(
        captures=lambda schema, table: (
            (schema, table) != capture.signal_table and capture.captures(schema, table)
        ),
        via_root=bool(getattr(properties, "publish_via_partition_root", False)),
        unsure=f"there is no such table; {', '.join(leaves_out)} may leave its rows out"
        if leaves_out
        else "",
    )


def publications_of(profile: Profile) -> tuple[str, ...]:
    """Return the publications that filter rows and columns.

    They do not filter a snapshot as Debezium takes it, so there are none for it.
    """
    names: tuple[str, ...] = getattr(profile.connector.properties, "publications", ())
    filters = profile.decoder.spec.capabilities.publication_filters
    return names if filters and not profile.debezium else ()


@contextlib.contextmanager
def connected(dsn: str) -> "Iterator[Connection[Any]]":
    """Connect to the source for the block, in autocommit.

    Raises: ConnectionLost; SourceError for a refused query; BadParameter.
    """
    import psycopg

    try:
        connection = psycopg.connect(dsn, autocommit=True, application_name="waltap verify")
    except psycopg.OperationalError as cause:
        raise ConnectionLost(str(cause).strip()) from cause
    # the message quotes the text, which may have a password
    except (psycopg.ProgrammingError, UnicodeError) as cause:
        raise typer.BadParameter(
            "cannot be read: postgres://user@host/db or key=value pairs", param_hint="--dsn"
        ) from cause
    try:
        with connection:
            yield connection
    except psycopg.Error as cause:
        message = str(cause).strip()
        if connection.broken:
            raise ConnectionLost(message) from cause
        # The source or a PostgreSQL destination raised it; the error does not show which.
        raise SourceError(f"what the comparison asks for is refused: {message}") from cause


def dsn_of(profile: Profile) -> str:
    """Return libpq's connection string of the profile's source."""
    from psycopg.conninfo import make_conninfo

    properties: Any = profile.connector.properties
    named = {d.name: getattr(properties, d.field) for d in declarations(type(properties))}
    given = {LIBPQ[name]: value for name, value in named.items() if name in LIBPQ}
    secret = getattr(properties, "secret", None)
    if secret is not None:
        given["password"] = secret()  # it may come from a command or from a file that changes
    given |= getattr(properties, "parameters", {})
    return make_conninfo("", **{name: v for name, v in given.items() if v is not None})


def _chosen(profile: Profile, wanted: str | None) -> "list[tuple[str, Component[SinkSpec]]]":
    """Return the destinations to compare.

    Raises: ConfigurationError if there is none, or none that keeps rows.
    """
    sinks = [(branch.name, branch.sink) for branch in profile.branches] or [
        ("the destination", profile.sink)
    ]
    if wanted is not None:
        sinks = [each for each in sinks if each[0] == wanted]
        if not sinks:
            names = ", ".join(branch.name for branch in profile.branches)
            raise usage_error("--sink", "names none of the sinks", value=wanted, allowed=names)
    if all(sink.spec.verification_source is None for _, sink in sinks):
        raise _keeps_nothing(sinks[0][1])
    return sinks


def _keeps_nothing(sink: "Component[SinkSpec]") -> ConfigurationError:
    return usage_error(
        "sink.type",
        f"the rows of sink {sink.spec.name} cannot be read back, so there is nothing to compare",
        allowed="the sinks changelog, spark and sql",
    )


def _opened(profile: Profile, sink: "Component[SinkSpec]") -> VerificationSource:
    """Open a destination. Raises: ConfigurationError, SinkError."""
    if sink.spec.verification_source is None:
        raise _keeps_nothing(sink)
    opened = sink.spec.verification_source(sink.properties, profile.name)
    if isinstance(opened, OffsetAwareSource) and not profile.branches:
        opened.stored_offset = partial(stored_lsn, profile)
    return opened


def stored_lsn(profile: Profile) -> int | None:
    """Return the LSN of the stored offset.

    The result is None without an offset or within a snapshot.
    """
    try:
        offset = FileOffsetStore(profile.state_dir / OFFSET).load()
    except OffsetError:
        return None
    if offset is None or offset.snapshot is not None:
        return None
    return min(each.position.end_lsn for each in offset.partitions.values())


def compared(
    profile: Profile, tables: Sequence[str], patience_s: float
) -> Mapping[str, TableComparison] | None:
    """Return the result for ``tables`` over all destinations.

    The result is None if one of them cannot be read. Raises: WaltapError.
    """
    if any(sink.spec.verification_source is None for sink in profile.sinks):
        return None
    found: dict[str, TableComparison] = {}
    for name, results in _comparisons(profile, dsn_of(profile), None, tables, (), patience_s):
        if isinstance(results, WaltapError):
            raise results
        paths: Mapping[str, Path] = {}
        with suppress(OSError):  # the result is valid without the files
            paths = write_surplus(profile, name, results)
        for each in results:
            known = found.get(each.table, TableComparison(equal=True))
            found[each.table] = TableComparison(
                equal=known.equal and each.equal and not (each.left_out or each.not_compared),
                surplus=(*known.surplus, *each.surplus),
                location=" and ".join(
                    filter(None, (known.location, str(paths.get(each.table, ""))))
                ),
            )
    return found
