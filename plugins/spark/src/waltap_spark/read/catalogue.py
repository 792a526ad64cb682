"""Find a query's tables and columns in the change log."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from waltap_sinks.changelog import NOTHING, ChangeLog, LogPosition, Manifest, TableEntry
from waltap_sinks.changelog.reader import plain_type
from waltap_spark.errors import SourceOption, TableNotLogged
from waltap_spark.read.options import SourceOptions
from waltap_spark.schema.schema import LOG_FIELDS, struct_of

# Columns of the data source after the tables' own.
OWN: Final = {**LOG_FIELDS, "_generation": '"integer"'}

# With several tables, before them; each table is then a struct of its name.
MANY: Final = {"_table": '"string"'}

# With profiles, after them: the name of the row's profile.
SOURCE: Final = {"_source": '"string"'}

# Newest manifests to read for one table before the complete log: busy tables are in the first ones.
MANIFEST_COUNTS: Final = (16, 256, 4096)


class QueryColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of one table in a query."""

    # Name → the source's column number, if known.
    numbers: dict[str, int | None]
    # The log's position at the look-up; later columns and types are new.
    log_position: LogPosition
    # The table of the numbers, 0 if unknown: another table may have had the name.
    oid: int = 0
    # The Arrow types at the look-up.
    arrow: dict[str, str] = {}
    # Whether the log had an entry of the table.
    seen: bool = True

    def stored(self, entry: TableEntry) -> dict[str, str]:
        """Return the names of the query's columns in ``entry``'s segments."""
        by_number = {each.number: each.name for each in entry.columns if each.number is not None}
        if self.oid and entry.oid and self.oid != entry.oid:
            by_number = {}  # another table had the name: its numbers are of other columns
        by_name = {each.name for each in entry.columns}
        found = {}
        for name, number in self.numbers.items():
            # The source's number first: a renamed column keeps it, a name may be another column's.
            called = by_number.get(number) if number is not None and by_number else None
            if called is None and name in by_name and not (number is not None and by_number):
                called = name
            if called is not None:
                found[name] = called
        return found

    def changed_in(
        self, entry: TableEntry, log_position: LogPosition
    ) -> tuple[list[str], list[str]]:
        """Return ``entry``'s columns that the query lacks, and retyped ones."""
        if log_position <= self.log_position:
            return [], []
        arrow = {each.name: each.arrow for each in entry.columns}
        called = self.stored(entry)
        new = [name for name in arrow if name not in called.values()]
        known = {stored: self.arrow.get(name, arrow[stored]) for name, stored in called.items()}
        return new, [stored for stored, kind in known.items() if arrow[stored] != kind]


def logged_tables(
    log: ChangeLog,
    options: SourceOptions,
    until: LogPosition | None = None,
    *,
    required: bool = True,
) -> dict[str, TableEntry]:
    """Return each wanted table's newest entry by name.

    Raises: TableNotLogged if the log has none of them and ``required``.
    """
    found: dict[str, TableEntry] = {}
    later: dict[str, TableEntry] = {}
    names: set[str] = set()
    for steps in _newest(log, everything=not options.table):
        for step in reversed(steps):
            entries = later if until is not None and step.log_position > until else found
            for entry in reversed(step.tables):
                names.add(entry.name)
                if options.wants(entry.name):
                    entries.setdefault(entry.name, entry)
        if options.table in found or (options.table in later and until == NOTHING):
            break
    found = later | found
    if not found and required:
        wanted = options.table or ", ".join(options.patterns)
        known = ", ".join(sorted(names)) or "none yet"
        raise TableNotLogged(f"{log.store.location} has no table {wanted}", known=known)
    return dict(sorted(found.items()))


def _newest(log: ChangeLog, *, everything: bool) -> Iterator[list[Manifest]]:
    for count in () if everything else MANIFEST_COUNTS:
        steps = log.newest(count)
        yield steps
        if len(steps) < count:
            return
    yield list(log.manifests(log.begin))


def source_struct(log: ChangeLog, options: SourceOptions) -> StructType:
    """Return a query's schema: columns, or a struct per table."""
    tables = {name: table_types(log, entry) for name, entry in logged_tables(log, options).items()}
    return query_struct(options, tables, OWN)


def query_struct(
    options: SourceOptions, tables: Mapping[str, Mapping[str, str]], own: Mapping[str, str]
) -> StructType:
    """Return the schema of ``tables`` with their columns, then ``own``.

    Raises: SourceOption if a column of the only table has one of these names.
    """
    if not options.table:
        structs = {name: struct_of(types).json() for name, types in sorted(tables.items())}
        return struct_of({**MANY, **structs, **own})
    columns = tables[options.table]
    if taken := next((name for name in columns if name in own), None):
        text = f"{options.table} has a column {taken} itself: use tables"
        raise SourceOption(text, option="table")
    return struct_of({**columns, **own})


def table_types(log: ChangeLog, entry: TableEntry) -> dict[str, str]:
    """Return the columns of ``entry``: name → type in JSON."""
    # A segment's footer has exact nested types, a manifest their text only.
    if entry.segments:
        schema = log.store.parquet_schema(entry.segments[0].path)
        kinds = {each.name: schema.field(each.name).type for each in entry.columns}
    else:
        kinds = {each.name: _named(each.arrow) for each in entry.columns}
    return arrow_types(pa.schema(kinds.items()))


def arrow_types(schema: pa.Schema) -> dict[str, str]:
    """Return a table's Spark types in JSON, by name."""
    return {
        field.name: from_arrow_type(
            plain_type(field.type, times=False), prefer_timestamp_ntz=True
        ).json()
        for field in schema
    }


def _named(text: str) -> pa.DataType:
    """Return the Arrow type of a text; string for nested types."""
    if text.startswith("timestamp[us, tz="):
        return pa.timestamp("us", tz="UTC")
    if text.startswith("decimal128("):
        precision, scale = text.removeprefix("decimal128(").rstrip(")").split(",")
        return pa.decimal128(int(precision), int(scale))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return pa.string()
