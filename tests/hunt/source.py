"""Random work on the source: schemas, rows, transactions of every kind. Each act draws from the
`Random` it is given and adapts to what there is, so that any act may be left out of a scenario.
"""

import contextlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import psycopg
from tests.harness.servers.postgres import Database
from tests.hunt import catalogue
from tests.hunt.alterations import KEY_NAMES, STYLES, TABLE_NAMES, Alterations, definition
from tests.hunt.catalogue import SCHEMAS, Known, name_of
from tests.hunt.values import TYPES, literal

MANY = 200
"""Columns beyond which a table is left out of acts that write it often."""

BY_NAME = {
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "boolean": "bool",
    "double precision": "float8",
    "character varying": "varchar(30)",
    "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamptz",
    "time without time zone": "time",
    "integer[]": "int4[]",
}
"""format_type()'s names → ours, where they differ. numeric has no precision there: any value fits."""


class Source:
    """One writer of one database, with a second session for transactions that stay open.

    ``truncates``: whether the decoder shows TRUNCATE; ``very_wide``: whether there are tables of more than a
    thousand columns.
    """

    def __init__(
        self, database: Database, *, truncates: bool = True, very_wide: bool = True
    ) -> None:
        self.database = database
        self.truncates, self.very_wide = truncates, very_wide
        self.back()
        self.prepared: list[str] = []
        self.alterations = Alterations()
        self.session.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s')")
        self.session.execute(f"CREATE SCHEMA {name_of(SCHEMAS[1])}")
        self.refused: list[str] = []
        self.prepared_xids: list[int] = []
        self.rolls_back = True
        """Whether prepared transactions may be rolled back."""

    def back(self) -> None:
        """Connect."""
        options = "-c lock_timeout=400 -c statement_timeout=30000 -c client_min_messages=error"
        self.session = self.database.connect(options=options)
        self.second = self.database.connect(options=options)

    def away(self) -> None:
        """Disconnect."""
        self.session.close()
        self.second.close()

    def close(self) -> None:
        for gid in list(self.prepared):
            with contextlib.suppress(psycopg.Error):
                self.database.execute(f"ROLLBACK PREPARED '{gid}'")
        self.away()

    # --- transactions ----------------------------------------------------------------------------

    def act(self, random: Random, kind: str) -> None:
        """Do one act by name; what the server refuses (a lock, a constraint) is undone."""
        getattr(self, f"do_{kind}")(random)

    @contextlib.contextmanager
    def transaction(self, end: str = "COMMIT") -> Iterator[psycopg.Connection[Any]]:
        session = self.session
        session.execute("BEGIN")
        try:
            yield session
        except psycopg.Error as error:
            self._refused(error)
            session.execute("ROLLBACK")
        else:
            try:
                session.execute(end)
            except psycopg.Error as error:  # a deferred constraint, or a type that PREPARE refuses
                self._refused(error)
                session.execute("ROLLBACK")

    def _refused(self, error: psycopg.Error) -> None:
        self.refused.append(f"{error.sqlstate} {str(error).splitlines()[0]}")

    def attempt(self, session: psycopg.Connection[Any], statement: str) -> bool:
        """Run one statement in a savepoint; False when the server refuses it."""
        session.execute("SAVEPOINT one")
        try:
            session.execute(statement)
        except psycopg.Error as error:
            self._refused(error)
            session.execute("ROLLBACK TO one")
            return False
        session.execute("RELEASE one")
        return True

    def do_work(self, random: Random) -> None:
        """A transaction of some row changes, parts of it rolled back."""
        with self.transaction() as session:
            self._changes(random, session, random.randrange(1, 7))

    def do_bulk(self, random: Random) -> None:
        """One large transaction: more than a batch, or than the server keeps in memory."""
        with self.transaction() as session:
            known = self._choose(random, session)
            if known is None:
                return
            for _ in range(random.randrange(1, 4)):
                self.attempt(session, self._insert(random, known, random.randrange(50, 500)))
                self._changes(random, session, 2)

    def do_storm(self, random: Random) -> None:
        """Hundreds of small transactions in a second."""
        known = self._choose(random, self.session, can_update=True, deferrable=False)
        if known is None or len(known.columns) > MANY:
            return
        made = [self._insert(random, known, 1) for _ in range(8)]
        made += [s for _ in range(12) if (s := self._update(random, known))]
        made += [f"DELETE FROM {known.sql} {self._some(random, known)}"]
        random.shuffle(made)
        texts = ", ".join(literal(statement) for statement in made)
        rounds = random.randrange(5, 40)
        try:
            self.session.execute(
                f"DO $storm$ DECLARE s text; BEGIN FOR n IN 1..{rounds} LOOP FOREACH s IN ARRAY"
                f" ARRAY[{texts}] LOOP EXECUTE s; COMMIT; END LOOP; END LOOP; END $storm$"
            )
        except psycopg.Error as error:
            self._refused(error)

    def do_large(self, random: Random) -> None:
        """A value of some MB."""
        with self.transaction() as session:
            known = self._choose(random, session)
            wide = [c for c in known.writable if c[1] in ("text", "bytea")] if known else []
            wide = (
                [c for c in wide if c[0] not in known.primary_key + known.identity_index]
                if known
                else []
            )
            if known is None or not wide or len(known.columns) > MANY:
                return
            column = name_of(random.choice(wide)[0])
            value = random.randbytes(random.choice((200_000, 900_000))).hex()
            text = f"\\x{value}" if wide[0][1] == "bytea" else value
            self.attempt(session, self._insert(random, known, 1))
            if known.can_update:
                self.attempt(
                    session,
                    f"UPDATE {known.sql} SET {column} = {literal(text)} {self._some(random, known, 2)}",
                )

    def do_truncate(self, random: Random) -> None:
        if not self.truncates:
            return self.do_work(random)
        with self.transaction() as session:
            chosen = [self._choose(random, session) for _ in range(random.randrange(1, 3))]
            names = {known.sql for known in chosen if known is not None}
            if names:
                session.execute(f"TRUNCATE {', '.join(sorted(names))}")
                self._changes(random, session, random.randrange(3))

    def do_prepare(self, random: Random) -> None:
        """Prepare a transaction; `do_decide` ends it."""
        self.alterations.number += 1
        gid = f"g{self.alterations.number}"
        with self.transaction(f"PREPARE TRANSACTION '{gid}'") as session:
            if random.random() < 0.25:
                self._create(random, session, rows=random.randrange(1, 40))
            self._changes(random, session, random.randrange(1, 5))
        query = "SELECT transaction::text::int8 FROM pg_prepared_xacts WHERE gid = %s"
        for (xid,) in self.database.execute(query, gid):
            self.prepared.append(gid)
            self.prepared_xids.append(xid)

    def do_decide(self, random: Random) -> None:
        """End a prepared transaction."""
        if self.prepared:
            gid = self.prepared.pop(random.randrange(len(self.prepared)))
            word = "COMMIT" if random.random() < 0.8 or not self.rolls_back else "ROLLBACK"
            self.session.execute(f"{word} PREPARED '{gid}'")

    def do_open(self, random: Random) -> None:
        """Begin a transaction that stays open beside others, or end the one that is."""
        if self.second.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            return self.end_open()
        self.second.execute("BEGIN")
        self._changes(random, self.second, random.randrange(1, 4))

    def end_open(self) -> None:
        """End the transaction that stays open."""
        if self.second.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self.second.execute("COMMIT")

    def decide_all(self) -> None:
        """End every transaction that is not ended."""
        self.end_open()
        while self.prepared:
            self.session.execute(f"COMMIT PREPARED '{self.prepared.pop()}'")

    # --- rows ------------------------------------------------------------------------------------

    def _choose(
        self, random: Random, session: psycopg.Connection[Any], **wanted: object
    ) -> Known | None:
        found = [
            known
            for known in catalogue.tables(session).values()
            if all(getattr(known, name) == value for name, value in wanted.items())
            and known.writable
            and not known.is_partition
        ]
        return random.choice(found) if found else None

    def _changes(self, random: Random, session: psycopg.Connection[Any], count: int) -> None:
        known = self._choose(random, session)
        for _ in range(count):
            if random.random() < 0.4:
                known = self._choose(random, session)
            if known is None:
                return
            if random.random() < 0.15:
                session.execute("SAVEPOINT part")
                self._change(random, session, known)
                self._change(random, session, known)
                session.execute("ROLLBACK TO part" if random.random() < 0.7 else "RELEASE part")
            self._change(random, session, known)

    def _change(self, random: Random, session: psycopg.Connection[Any], known: Known) -> None:
        made: list[tuple[int, Callable[[], str | None]]] = [
            (4, lambda: self._insert(random, known, random.randrange(1, 9)))
        ]
        if known.can_update:
            made += [
                (5, lambda: self._update(random, known)),
                (2, lambda: f"DELETE FROM {known.sql} {self._some(random, known)}"),
                (2, lambda: self._move(random, known)),
                (1, lambda: self._upsert(random, known)),
            ]
            if random.random() < 0.08:
                self._swap(random, session, known)
        weights, makers = zip(*made, strict=True)
        statement = random.choices(makers, weights)[0]()
        if statement is not None:
            self.attempt(session, statement)

    @staticmethod
    def _value(random: Random, column: tuple[str, str, bool, bool]) -> str:
        name, kind, required, _generated = column
        if not required and random.random() < 0.15:
            return "NULL"
        made = TYPES[BY_NAME.get(kind, kind)](random)
        if name in KEY_NAMES and isinstance(made, int):
            made %= 2000  # so that keys are met again
        return literal(made)

    def _insert(self, random: Random, known: Known, count: int) -> str:
        columns = [c for c in known.writable if c[2] or random.random() < 0.9] or known.writable
        names = ", ".join(name_of(c[0]) for c in columns)
        rows = ", ".join(
            "(" + ", ".join(self._value(random, c) for c in columns) + ")" for _ in range(count)
        )
        arbiter = (known.kind == "r" or known.primary_key) and not known.deferrable
        conflict = " ON CONFLICT DO NOTHING" if arbiter else ""
        return f"INSERT INTO {known.sql} ({names}) VALUES {rows}{conflict}"

    @staticmethod
    def _some(random: Random, known: Known, most: int = 6) -> str:
        skip, count = random.choice((0, 0, 1, 3, 10)), random.randrange(1, most)
        return (
            f"WHERE (tableoid, ctid) IN (SELECT tableoid, ctid FROM {known.sql}"
            f" OFFSET {skip} LIMIT {count})"
        )

    def _update(self, random: Random, known: Known) -> str | None:
        free = [c for c in known.writable if c[0] not in known.primary_key + known.identity_index]
        if not free:
            return None
        chosen = random.sample(free, random.randrange(1, min(3, len(free)) + 1))
        sets = ", ".join(f"{name_of(c[0])} = {self._value(random, c)}" for c in chosen)
        return f"UPDATE {known.sql} SET {sets} {self._some(random, known)}"

    def _move(self, random: Random, known: Known) -> str | None:
        """Change a key: one row to a new value, or several by one step."""
        if not known.key or (known.identity == "i" and known.primary_key != known.key):
            return None
        by_name = {c[0]: c for c in known.columns}
        column = by_name[random.choice(known.key)]
        if column[1] in ("integer", "bigint") and random.random() < 0.5:
            name = name_of(column[0])
            if known.deferrable:  # keys exchanged, or moved along, within one statement
                order = random.choice((f"{name} + 1", f"-{name}"))
                return f"UPDATE {known.sql} SET {name} = {order} {self._some(random, known, 30)}"
            return f"UPDATE {known.sql} SET {name} = {name} + 100000 {self._some(random, known)}"
        return (
            f"UPDATE {known.sql} SET {name_of(column[0])} = {self._value(random, column)}"
            f" {self._some(random, known, 2)}"
        )

    def _swap(self, random: Random, session: psycopg.Connection[Any], known: Known) -> None:
        """Two rows exchange their keys, by way of a third."""
        if len(known.key) != 1 or (known.identity == "i" and known.primary_key != known.key):
            return
        column = next(c for c in known.columns if c[0] == known.key[0])
        if column[1] not in ("integer", "bigint"):
            return
        name = name_of(column[0])
        found = session.execute(f"SELECT {name} FROM {known.sql} ORDER BY 1 LIMIT 2").fetchall()
        if len(found) == 2:
            ((one,), (other,)) = found
            for old, new in ((one, -77), (other, one), (-77, other)):
                self.attempt(session, f"UPDATE {known.sql} SET {name} = {new} WHERE {name} = {old}")

    def _upsert(self, random: Random, known: Known) -> str | None:
        if not known.primary_key or known.deferrable:
            return None
        free = [c for c in known.writable if c[0] not in known.primary_key + known.identity_index]
        if not free:
            return None
        column = name_of(random.choice(free)[0])
        insert = self._insert(random, known, 1).removesuffix(" ON CONFLICT DO NOTHING")
        key = ", ".join(name_of(name) for name in known.primary_key)
        return f"{insert} ON CONFLICT ({key}) DO UPDATE SET {column} = EXCLUDED.{column}"

    def identify_all(self) -> None:
        """Give every table a replica identity that can show its rows."""
        self.decide_all()
        with self.transaction() as session:
            before = catalogue.tables(session)
            for known in before.values():
                if known.kind == "r" and not known.can_update:
                    self.attempt(session, f"ALTER TABLE {known.sql} REPLICA IDENTITY FULL")
            catalogue.mark(session, before)

    # --- tables ----------------------------------------------------------------------------------

    def do_create(self, random: Random) -> None:
        """Create a table, empty or filled in the same transaction."""
        with self.transaction() as session:
            self._create(random, session, rows=random.choice((0, 0, 3, 30)))

    def do_burst(self, random: Random) -> None:
        """Tables that are made and filled in one transaction each, one after the other."""
        for _ in range(random.randrange(3, 9)):
            with self.transaction() as session:
                self._create(random, session, rows=random.choice((1, 5, 60)), plain=True)

    def do_ddl(self, random: Random) -> None:
        """DDL, often with row changes before and after it in the same transaction."""
        with self.transaction() as session:
            if random.random() < 0.4:
                self._changes(random, session, 2)
            self._alter(random, session)
            if random.random() < 0.6:
                self._changes(random, session, random.randrange(1, 4))

    def do_undone(self, random: Random) -> None:
        """DDL and row changes in savepoints, undone or kept, with changes after them."""
        with self.transaction() as session:
            for _ in range(random.randrange(1, 4)):
                session.execute("SAVEPOINT outer_one")
                act = random.choice((self._alter, self._alter, self._make))
                act(random, session)
                self._changes(random, session, random.randrange(3))
                undone = random.random() < 0.6
                session.execute("ROLLBACK TO outer_one" if undone else "RELEASE outer_one")
                self._changes(random, session, random.randrange(1, 3))

    def _make(self, random: Random, session: psycopg.Connection[Any]) -> None:
        self._create(random, session, rows=random.choice((0, 3)))

    def do_change_then_ddl(self, random: Random) -> None:
        """Row changes of a table, then at once DDL of that table: the swap behind a reader's back."""
        known = None
        with self.transaction() as session:
            known = self._choose(random, session, can_update=True)
            if known is not None:
                self.attempt(session, self._insert(random, known, 4))
                for maker in (self._update, self._move):
                    if statement := maker(random, known):
                        self.attempt(session, statement)
                self.attempt(session, f"DELETE FROM {known.sql} {self._some(random, known)}")
        if known is not None:
            with self.transaction() as session:
                self._alter(random, session, known)

    def do_swap(self, random: Random) -> None:
        """A new table takes the place of an old one, which stays under another name or goes."""
        with self.transaction() as session:
            known = self._choose(random, session, kind="r")
            if known is None:
                return
            self.alterations.number += 1
            fresh = f"fresh{self.alterations.number}"
            self._create(random, session, rows=5, plain=True, name=(known.schema, fresh))
            before = catalogue.tables(session)
            if random.random() < 0.5:
                old = name_of(f"{known.table[:20]}_o{self.alterations.number}")
                session.execute(f"ALTER TABLE {known.sql} RENAME TO {old}")
            else:
                session.execute(f"DROP TABLE {known.sql} CASCADE")
            session.execute(
                f"ALTER TABLE {name_of(known.schema, fresh)} RENAME TO {name_of(known.table)}"
            )
            catalogue.mark(session, before)
            self._changes(random, session, 2)

    def rewrite(self, random: Random) -> None:
        """An ALTER TABLE that rewrites, or renames, in the place where a snapshot is about to read."""
        with self.transaction() as session:
            known = self._choose(random, session, kind="r")
            if known is not None:
                before, ddl = catalogue.tables(session), self.alterations
                acts = (ddl.add_volatile, ddl.retype, ddl.rename_column, ddl.add_volatile)
                for statement in random.choice(acts)(random, known):
                    self.attempt(session, statement)
                catalogue.mark(session, before)

    def _create(
        self,
        random: Random,
        session: psycopg.Connection[Any],
        *,
        rows: int,
        plain: bool = False,
        name: tuple[str, str] | None = None,
    ) -> None:
        before = catalogue.tables(session)
        schema = random.choices(SCHEMAS, (3, 1))[0]
        table = random.choice(TABLE_NAMES)
        if f"{schema}.{table}" in before:
            self.alterations.number += 1
            table = f"{table[:20]}{self.alterations.number}"
        schema, table = name or (schema, table)
        weights = (7, 2, 1, 0.3, 0.15) if plain else (7, 2, 1, 0.6, 0.15, 1, 1, 0.5)
        style = random.choices(STYLES[: len(weights)], weights)[0]
        if style == "wide" and not self.very_wide:
            style = "key"
        for statement in definition(random, schema, table, style):
            session.execute(statement)
        if random.random() < 0.3 and style not in ("partitions", "deferrable"):
            session.execute(f"ALTER TABLE {name_of(schema, table)} REPLICA IDENTITY FULL")
        catalogue.mark(session, before)
        known = catalogue.tables(session)[f"{schema}.{table}"]
        if rows:
            self.attempt(session, self._insert(random, known, rows))

    def _alter(
        self, random: Random, session: psycopg.Connection[Any], known: Known | None = None
    ) -> None:
        before = catalogue.tables(session)
        known = known or self._choose(random, session)
        if known is None:
            return
        for statement in self.alterations.draw(random, known):
            if not self.attempt(session, statement):
                break
        catalogue.mark(session, before)
