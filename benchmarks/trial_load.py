"""The load of `benchmarks.spark_trial`: writers that change rows of many tables, and one that alters them.

Each change of a row gives it a higher ``v``, so that no two states of a row are equal.
"""

import abc
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql
from tests.harness.servers.postgres import Database

LARGE = 2_600
"""Characters of a value that lies out of line, and is not sent with changes of other columns."""

BUSY = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.ObjectInUse,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UniqueViolation,
    psycopg.errors.SerializationFailure,
)
"""What writers meet when others alter or change the same: they begin another transaction."""

COLUMNS = (
    "id bigint, v bigint NOT NULL, note text, large text, price numeric(12,2), seen timestamptz,"
    " doc jsonb, flag boolean, day date, clock time, ref uuid, raw bytea, tags int[]"
)


class RolledBack(Exception):
    """A transaction that ends without its changes."""


@dataclass
class Table:
    """One table of the source. ``kept``: its mode in Spark; ``notes``: all names that ``note`` has had."""

    name: str
    kept: str = "scd1"
    key: tuple[str, ...] = ("id",)
    notes: list[str] = field(default_factory=lambda: ["note"])
    added: list[str] = field(default_factory=list)

    @property
    def called(self) -> dict[str, str]:
        """Return all names of ``note`` with the one it has now."""
        return dict.fromkeys(self.notes, self.notes[-1])

    def create(self, rows: int) -> str:
        """Return SQL that makes and fills the table."""
        text = f"CREATE TABLE {self.name} ({COLUMNS});\n"
        if self.name.startswith("swap"):  # keys change places in one statement
            text += f"ALTER TABLE {self.name} ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED;\n"
            text += f"ALTER TABLE {self.name} REPLICA IDENTITY FULL;\n"
        elif self.key:
            text += f"ALTER TABLE {self.name} ADD PRIMARY KEY ({', '.join(self.key)});\n"
        else:
            text += f"ALTER TABLE {self.name} REPLICA IDENTITY FULL;\n"
        return text + (
            f"ALTER TABLE {self.name} ALTER large SET STORAGE EXTERNAL;\n"
            f"INSERT INTO {self.name} SELECT g, 0, 'n' || g,"
            f" CASE WHEN g % 4 = 0 THEN repeat(g::text, {LARGE}) END, g / 7.0, now(),"
            " jsonb_build_object('g', g), g % 2 = 0, current_date, '05:17:00.25',"
            " md5(g::text)::uuid, decode(md5(g::text), 'hex'), ARRAY[g, NULL, 3]"
            f" FROM generate_series(1, {rows}) g;\n"
        )


def tables_of(count: int) -> list[Table]:
    """Return ``count`` tables, from eight on of all kinds."""
    kinds = [
        Table("plain0"),
        Table("past0", kept="scd2"),
        Table("swap0"),
        Table("bare0", key=()),
        Table("pair0", key=("id", "day")),
        Table("soft0", kept="soft"),
        Table("log0", kept="append"),
        Table("past1", kept="scd2"),
        Table("swap1", kept="scd2"),
        Table("pair1", key=("id", "day"), kept="scd2"),
    ]
    more = [Table(f"plain{n}") for n in range(1, max(1, count - len(kinds) + 1))]
    return (kinds + more)[:count]


class Load:
    """Writers, each with keys of its own, modulo their number, and one that alters tables."""

    def __init__(
        self,
        database: Database,
        tables: list[Table],
        rows: int,
        seed: int,
        *,
        pause_s: float = 0.05,
        alter_s: float = 8.0,
    ) -> None:
        """``pause_s``: of a writer between two transactions, on average; ``alter_s``: between two
        alterations."""
        self.pause_s, self.alter_s = pause_s, alter_s
        self._database, self._tables, self._seed = database, tables, seed
        self.done: Counter[str] = Counter()
        self._finish = threading.Event()
        self._writers = [_Writer(self, n, rows) for n in range(WRITERS)]
        self._alterations = Alterations(self, seed)

    @property
    def database(self) -> Database:
        """Return the source."""
        return self._database

    @property
    def tables(self) -> list[Table]:
        """Return the tables."""
        return self._tables

    @property
    def seed(self) -> int:
        """Return what chance begins with."""
        return self._seed

    def wait(self, seconds: float) -> bool:
        """Wait; return whether it is time to end."""
        return self._finish.wait(seconds)

    def start(self) -> None:
        """Begin to write."""
        for each in (*self._writers, self._alterations):
            each.start()

    def finish(self) -> None:
        """Let writers end, and wait for that. Raises: what one of them failed with."""
        self._finish.set()
        for each in (*self._writers, self._alterations):
            each.join()
            if each.failed is not None:
                raise each.failed


WRITERS = 4


class _Worker(threading.Thread, abc.ABC):
    def __init__(self, load: Load, number: int, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._load, self._number, self._pause_s = load, number, pause_s
        self._chance = random.Random(load.seed * 100 + number)
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with self._load.database.connect(prepare_threshold=None) as connection:
                connection.execute("SET lock_timeout = '3s'")
                while not self._load.wait(self._chance.random() * 2 * self._pause_s):
                    try:
                        self._once(connection)
                    except BUSY as error:
                        self._load.done[type(error).__name__] += 1
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self.failed = error

    @abc.abstractmethod
    def _once(self, connection: psycopg.Connection[Any]) -> None:
        """Do one transaction."""


class _Writer(_Worker):
    def __init__(self, load: Load, number: int, rows: int) -> None:
        super().__init__(load, number, load.pause_s)
        self._rows = {
            table.name: set(range(number or WRITERS, rows + 1, WRITERS)) for table in load.tables
        }
        self._version = number
        self._next = rows + WRITERS + number - rows % WRITERS

    def _once(self, connection: psycopg.Connection[Any]) -> None:
        before = {name: set(keys) for name, keys in self._rows.items()}
        steps = self._chance.choice((1, 1, 2, 3, 5, 12, 40))
        kinds: list[str] = []
        try:
            with connection.transaction():
                for _ in range(steps):
                    for kind, statement, values in self._change():
                        kinds.append(kind)
                        connection.execute(statement, values)
                if self._chance.random() < 0.04:
                    raise RolledBack
        except RolledBack:
            self._rows = before
            self._load.done["rolled back"] += 1
        except BaseException:
            self._rows = before
            raise
        else:
            self._load.done.update(kinds)
            self._load.done["transactions"] += 1

    def _change(self) -> Iterator[tuple[str, sql.Composed, list[Any]]]:
        chance = self._chance
        table = chance.choice(self._load.tables)
        rows = self._rows[table.name]
        note = table.notes[-1]
        self._version += WRITERS
        what = chance.random()

        def said(text: str) -> sql.Composed:
            return sql.SQL(text).format(t=sql.Identifier(table.name), note=sql.Identifier(note))

        if what < 0.2 or len(rows) < 2:
            self._next += WRITERS
            large = chance.choice("abcdef") * LARGE if chance.random() < 0.3 else None
            values = [self._next, self._version, "new", large, chance.randint(0, 9999) / 100]
            yield (
                "insert",
                said(
                    "INSERT INTO {t} (id, v, {note}, large, price, seen, doc, flag, day, clock, ref,"
                    " raw, tags) VALUES (%s, %s, %s, %s, %s, clock_timestamp(), '{{\"new\": [1]}}', NULL,"
                    " current_date, clock_timestamp()::time, gen_random_uuid(), 'raw', ARRAY[1])"
                ),
                values,
            )
            rows.add(self._next)
            return
        row = chance.choice(sorted(rows)[:60])
        if what < 0.3:
            rows.discard(row)
            yield "delete", said("DELETE FROM {t} WHERE id = %s"), [row]
        elif what < 0.4:
            self._next += WRITERS
            other = self._next if chance.random() < 0.5 else -self._next
            rows.discard(row)
            rows.add(other)
            values = [other, self._version, row]
            yield "key change", said("UPDATE {t} SET id = %s, v = %s WHERE id = %s"), values
        elif what < 0.5:
            yield from self._swap(table, said, sorted(rows))
        elif what < 0.6:
            values = [chance.choice("uvwxyz") * LARGE, self._version, row]
            yield "toast", said("UPDATE {t} SET large = %s, v = %s WHERE id = %s"), values
        elif what < 0.6003 and table.name != "bare0":
            yield "truncate", said("TRUNCATE {t}"), []
        elif what < 0.65 and table.added:
            column = sql.Identifier(chance.choice(table.added))
            statement = sql.SQL("UPDATE {} SET {} = {} || '7', v = %s WHERE id = %s").format(
                sql.Identifier(table.name), column, column
            )
            yield "added column", statement, [self._version, row]
        else:
            values = [self._version, chance.choice(["a", None, "ü'\\n"]), row]
            yield "update", said("UPDATE {t} SET v = %s, {note} = %s WHERE id = %s"), values

    def _swap(
        self, table: Table, said: Any, rows: list[int]
    ) -> Iterator[tuple[str, sql.Composed, list[Any]]]:
        one, other = self._chance.sample(rows[:60], 2)
        v = self._version
        if table.name.startswith("swap"):
            text = "UPDATE {t} SET id = %s - id, v = %s WHERE id IN (%s, %s)"
            yield "swap", said(text), [one + other, v, one, other]
            return
        aside = 1_000_000_000 + self._number
        text = "UPDATE {t} SET id = %s, v = %s WHERE id = %s"
        yield "swap", said(text), [aside, v, one]
        yield "swap", said(text), [one, v, other]
        yield "swap", said(text), [other, v, aside]


class Alterations(_Worker):
    """Adds, drops, renames and widens columns; creates a table again."""

    def __init__(self, load: Load, seed: int) -> None:
        super().__init__(load, 99, load.alter_s)
        self._number = 0

    def _once(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        table = chance.choice(self._load.tables)
        name = sql.Identifier(table.name)
        self._number += 1
        fresh = f"c{self._number}"
        what = chance.choice(("add", "add", "default", "drop", "rename", "note", "widen"))

        def run(text: str, *parts: sql.Composable) -> None:
            connection.execute(sql.SQL(text).format(name, *parts))

        if what == "add" or (what in {"drop", "rename"} and not table.added):
            run("ALTER TABLE {} ADD COLUMN {} text", sql.Identifier(fresh))
            table.added.append(fresh)
        elif what == "default":
            run(
                "ALTER TABLE {} ADD COLUMN {} text NOT NULL DEFAULT 'made so'",
                sql.Identifier(fresh),
            )
            table.added.append(fresh)
        elif what == "drop":
            gone = chance.choice(table.added)
            table.added.remove(gone)
            run("ALTER TABLE {} DROP COLUMN {}", sql.Identifier(gone))
        elif what == "rename":
            old = table.added.pop(0)
            run("ALTER TABLE {} RENAME {} TO {}", sql.Identifier(old), sql.Identifier(fresh))
            table.added.append(fresh)
        elif what == "note":
            fresh = f"note{self._number}"
            run(
                "ALTER TABLE {} RENAME {} TO {}",
                sql.Identifier(table.notes[-1]),
                sql.Identifier(fresh),
            )
            table.notes.append(fresh)
        else:
            column = f"w{self._number}"
            run("ALTER TABLE {} ADD COLUMN {} int", sql.Identifier(column))
            statement = sql.SQL("UPDATE {} SET {} = 7, v = v + 1000000 WHERE id % 50 = 0")
            connection.execute(statement.format(name, sql.Identifier(column)))
            time.sleep(0.5)
            run("ALTER TABLE {} ALTER {} TYPE bigint", sql.Identifier(column))
        self._load.done[f"alter: {what}"] += 1
