"""A day of operations, as transactions of an airport's systems.

Flights are published, depart, arrive or are cancelled. The weather is observed every hour. The
correction of a tail number changes a primary key. At night a column is added and filled.
"""

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from waltap_demo.flights import DayData

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["FlightOperation", "day_of_operations", "night_run"]

# Flights of one inserting transaction.
PUBLISHED_TOGETHER: Final = 40

Row = dict[str, str | None]
Act = Callable[["Connection[Any]"], int]


@dataclass(frozen=True, slots=True)
class FlightOperation:
    """Describe one transaction."""

    # Minute of the day.
    minute: int
    kind: str
    # Executes it and returns the number of changed rows.
    act: Act


def day_of_operations(day: DayData) -> list[FlightOperation]:
    """Return the transactions of the day in order."""
    events = [*_schedule(day.flights), *_corrections(day.flights)]
    for row in day.flights:
        events += _life_of_flight(row)
    for row in day.weather:
        hour = int(row["hour"] or 0)
        events.append(
            FlightOperation(60 * hour + 51, "weather observed", _insert("weather", [row]))
        )
    return sorted(events, key=lambda event: event.minute)


def night_run(day: dt.date) -> list[FlightOperation]:
    """Return the transactions after the day.

    They add a column and fill it for the month.
    """

    def add(connection: "Connection[Any]") -> int:
        connection.execute("ALTER TABLE flights ADD COLUMN late boolean")
        return 0

    def fill(connection: "Connection[Any]") -> int:
        return connection.execute(
            "UPDATE flights SET late = arr_delay > 15 WHERE month = %s", [day.month]
        ).rowcount

    return [
        FlightOperation(24 * 60, "column added: late", add),
        FlightOperation(24 * 60 + 1, "late computed for the month", fill),
    ]


def _insert(table: str, rows: list[Row]) -> Act:
    names = list(rows[0])
    columns = ", ".join(names)
    marks = ", ".join(["%s"] * len(names))
    values = [[row[name] for name in names] for row in rows]

    def act(connection: "Connection[Any]") -> int:
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values)
        return len(values)

    return act


def _schedule(flights: list[Row]) -> Iterator[FlightOperation]:
    """Publish the day's flights in the first minutes after midnight."""
    # A plan does not have the facts of the flight itself.
    unknown: Row = dict.fromkeys(("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"))
    planned = [{**row, **unknown} for row in flights]
    for number, start in enumerate(range(0, len(planned), PUBLISHED_TOGETHER)):
        part = planned[start : start + PUBLISHED_TOGETHER]
        yield FlightOperation(number // 4, "flights published", _insert("flights", part))


def _minute(clock: str | None) -> int:
    """Return the minute of the day of a clock like 517."""
    number = int(clock or 0)
    return number // 100 * 60 + number % 100


def _life_of_flight(row: Row) -> Iterator[FlightOperation]:
    planned = _minute(row["sched_dep_time"])
    key = [row["time_hour"], row["carrier"], row["flight"]]
    # In the data a cancelled flight has no departure.
    if row["dep_time"] is None:
        yield FlightOperation(max(20, planned - 30), "flight cancelled", _delete(key))
        return
    left = max(20, planned + int(row["dep_delay"] or 0))
    departure = {"dep_time": row["dep_time"], "dep_delay": row["dep_delay"]}
    yield FlightOperation(left, "flight departed", _update(departure, key))
    if row["arr_time"] is not None:
        # arr_time is local to the destination, so the landing follows from the air time.
        landed = left + int(row["air_time"] or 60) + 15
        arrival = {name: row[name] for name in ("arr_time", "arr_delay", "air_time")}
        yield FlightOperation(min(landed, 24 * 60 - 1), "flight arrived", _update(arrival, key))


def _update(values: dict[str, str | None], key: list[str | None]) -> Act:
    assignments = ", ".join(f"{name} = %s" for name in values)
    statement = (
        f"UPDATE flights SET {assignments} WHERE time_hour = %s AND carrier = %s AND flight = %s"
    )

    def act(connection: "Connection[Any]") -> int:
        return connection.execute(statement, [*values.values(), *key]).rowcount

    return act


def _delete(key: list[str | None]) -> Act:
    statement = "DELETE FROM flights WHERE time_hour = %s AND carrier = %s AND flight = %s"

    def act(connection: "Connection[Any]") -> int:
        return connection.execute(statement, key).rowcount

    return act


def _corrections(flights: list[Row]) -> Iterator[FlightOperation]:
    """Correct tail numbers at noon.

    Each correction changes the plane's primary key and all its flights.
    """
    flown = [row["tailnum"] for row in flights if row["dep_time"] is not None and row["tailnum"]]
    # About three planes of the day; a plane flies several times.
    for number, tail in enumerate(dict.fromkeys(flown[:: max(1, len(flown) // 3)])):
        yield FlightOperation(
            12 * 60 + number, "tail number corrected", _correct(str(tail), f"{tail}X")
        )


def _correct(wrong: str, right: str) -> Act:
    def act(connection: "Connection[Any]") -> int:
        planes = connection.execute(
            "UPDATE planes SET tailnum = %s WHERE tailnum = %s", [right, wrong]
        ).rowcount
        flights = connection.execute(
            "UPDATE flights SET tailnum = %s WHERE tailnum = %s", [right, wrong]
        ).rowcount
        return planes + flights

    return act
