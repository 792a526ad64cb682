"""A day of operations as transactions of an airport's systems, and its replay.

Flights are published, depart, arrive or are cancelled. The weather is observed every hour. The
correction of a tail number changes a primary key. At night a column is added and filled. The replay is
faster than real time, and measures when the changes arrive in Spark.
"""

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from waltap.changes.transactions.position import parse_lsn
from waltap_demo.flights import DayData
from waltap_sinks.changelog import ChangeLog
from waltap_spark.state.output import SparkOutput

if TYPE_CHECKING:
    from psycopg import Connection
    from rich.console import Console


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
    add = _execute(("ALTER TABLE flights ADD COLUMN late boolean", ()))
    fill = _execute(("UPDATE flights SET late = arr_delay > 15 WHERE month = %s", [day.month]))
    return [
        FlightOperation(24 * 60, "column added: late", add),
        FlightOperation(24 * 60 + 1, "late computed for the month", fill),
    ]


def _execute(*statements: tuple[str, Sequence[object]]) -> Act:
    def act(connection: "Connection[Any]") -> int:
        # DDL has no number of rows.
        return sum(max(0, connection.execute(*statement).rowcount) for statement in statements)

    return act


def _insert(table: str, rows: list[Row]) -> Act:
    names = list(rows[0])
    columns = ", ".join(names)
    placeholders = ", ".join(["%s"] * len(names))
    values = [[row[name] for name in names] for row in rows]

    def act(connection: "Connection[Any]") -> int:
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} ({columns}) VALUES ({placeholders})", values)
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
        statement = "DELETE FROM flights WHERE time_hour = %s AND carrier = %s AND flight = %s"
        yield FlightOperation(max(20, planned - 30), "flight cancelled", _execute((statement, key)))
        return
    departed = max(20, planned + int(row["dep_delay"] or 0))
    departure = {"dep_time": row["dep_time"], "dep_delay": row["dep_delay"]}
    yield FlightOperation(departed, "flight departed", _update(departure, key))
    if row["arr_time"] is not None:
        # arr_time is local to the destination, so the landing follows from the air time.
        landed = departed + int(row["air_time"] or 60) + 15
        arrival = {name: row[name] for name in ("arr_time", "arr_delay", "air_time")}
        yield FlightOperation(min(landed, 24 * 60 - 1), "flight arrived", _update(arrival, key))


def _update(values: dict[str, str | None], key: list[str | None]) -> Act:
    assignments = ", ".join(f"{name} = %s" for name in values)
    statement = (
        f"UPDATE flights SET {assignments} WHERE time_hour = %s AND carrier = %s AND flight = %s"
    )

    return _execute((statement, [*values.values(), *key]))


def _corrections(flights: list[Row]) -> Iterator[FlightOperation]:
    """Correct tail numbers at noon.

    Each correction changes the plane's primary key and all its flights.
    """
    flown = [row["tailnum"] for row in flights if row["dep_time"] is not None and row["tailnum"]]
    # About three planes of the day; a plane flies several times.
    for number, tail in enumerate(dict.fromkeys(flown[:: max(1, len(flown) // 3)])):
        right = f"{tail}X"
        act = _execute(
            ("UPDATE planes SET tailnum = %s WHERE tailnum = %s", [right, tail]),
            ("UPDATE flights SET tailnum = %s WHERE tailnum = %s", [right, tail]),
        )
        yield FlightOperation(12 * 60 + number, "tail number corrected", act)


# --- replay -----------------------------------------------------------------------------------------

POLL_S: Final = 0.1
# Seconds between lines of progress.
REPORT_EVERY_S: Final = 5.0


class ReplayProgress:
    """Read the progress of change log and Spark from their files."""

    def __init__(self, lake: Path) -> None:
        self._log = ChangeLog(str(lake / "changelog"))
        self._output = SparkOutput(str(lake / "tables"))

    def logged_rows(self) -> int:
        return sum(manifest.rows for manifest in self._log.manifests())

    def applied_rows(self) -> int:
        state = self._output.state()
        return 0 if state is None else state.rows_applied

    def applied_lsn(self) -> int:
        """Return the LSN that Spark's tables have reached."""
        state = self._output.state()
        return 0 if state is None else state.log_position.end_lsn


class OperationReplay:
    """Execute operations as transactions.

    It counts them and measures their time until Spark has them.
    """

    def __init__(
        self, connection: "Connection[Any]", progress: ReplayProgress, console: "Console"
    ) -> None:
        self._connection, self._progress, self._console = connection, progress, console
        self.transactions = 0
        self.rows = 0
        self.kinds: Counter[str] = Counter()
        self._committed: list[tuple[int, float]] = []
        self._latencies: list[float] = []
        self._next_poll = 0.0
        self._next_report = time.monotonic() + REPORT_EVERY_S

    def play(self, events: Sequence[FlightOperation], seconds: float) -> None:
        """Execute ``events``, spread over ``seconds`` by their minute."""
        began = time.monotonic()
        first, last = events[0].minute, events[-1].minute
        for event in events:
            share = (event.minute - first) / max(1, last - first)
            while (remaining := began + share * seconds - time.monotonic()) > 0:
                # Short sleeps keep the measurement of latency going.
                time.sleep(min(remaining, POLL_S))
                self._poll(event)
            with self._connection.transaction():
                rows = event.act(self._connection)
                lsn = self._connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert lsn is not None
            self.transactions += 1
            self.rows += rows
            self.kinds[event.kind] += 1
            # A transaction without changes never arrives in Spark.
            if rows:
                self._committed.append((parse_lsn(str(lsn[0])), time.monotonic()))
            self._poll(event)

    def caught_up(self) -> bool:
        self._measure()
        return not self._committed

    def latency(self) -> str:
        """Return the latency's median and 95th percentile as text.

        It is the time from commit to Spark table.
        """
        if not self._latencies:
            return "nothing measured"
        ordered = sorted(self._latencies)
        middle, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)]
        return f"{middle:.1f} s / {high:.1f} s"

    def _poll(self, event: FlightOperation) -> None:
        now = time.monotonic()
        if now < self._next_poll:
            return
        self._next_poll = now + POLL_S
        self._measure()
        if now >= self._next_report:
            self._next_report = now + REPORT_EVERY_S
            clock = f"{event.minute // 60:02}:{event.minute % 60:02}"
            self._console.print(
                f"         {clock}  {self.transactions:,} transactions made, "
                f"{len(self._committed):,} not yet in Spark",
                style="dim",
            )

    def _measure(self) -> None:
        """Record the latency of transactions that have arrived."""
        lsn, now = self._progress.applied_lsn(), time.monotonic()
        arrived = 0
        for noted, committed in self._committed:
            # The LSN was read inside the transaction, so its commit record is after it and before
            # the next one's LSN. Tables beyond the LSN have the transaction.
            if noted >= lsn:
                break
            self._latencies.append(now - committed)
            arrived += 1
        del self._committed[:arrived]
