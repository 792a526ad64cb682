"""Random work on the source: schemas, rows, transactions of every kind. Each act draws from the
`Random` it is given and adapts to what there is, so that any act may be left out of a scenario.
"""

import contextlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import psycopg

from tests.hunt import catalogue
from tests.hunt.catalogue import SCHEMAS, Known, name_of
from tests.hunt.values import KEY_TYPES, TYPES, literal
from tests.servers.postgres import Database

__all__ = ["Source"]

TABLE_NAMES = (
    "a",
    "orders",
    "Odd Name",
    "t.dot",
    "ünï",
    "select",
    "zz_last",
    "b'q",
    'd"q',
    "m1",
    "m2",
)
COLUMN_NAMES = ("v", "w", "Mixed Case", "x.y", "ö", "from", "a b", 'q"q', "n1", "n2", "n3", "n4")

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

    ``truncates``: whether the decoder tells TRUNCATE; ``prepares``: whether to prepare transactions.
    """

    def __init__(self, database: Database, *, truncates: bool = True) -> None:
        self.database = database
        self.truncates = truncates
        self.back()
        self.prepared: list[str] = []
        self.number = 0
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
            self.refused.append(f"{error.sqlstate} {str(error).splitlines()[0]}")
            session.execute("ROLLBACK")
        else:
            try:
                session.execute(end)
            except psycopg.Error as error:  # a deferred constraint, or a type that PREPARE refuses
                self.refused.append(f"{error.sqlstate} {str(error).splitlines()[0]}")
                session.execute("ROLLBACK")

    def attempt(self, session: psycopg.Connection[Any], statement: str) -> bool:
        """Run one statement in a savepoint; False when the server refuses it."""
        session.execute("SAVEPOINT one")
        try:
            session.execute(statement)
        except psycopg.Error as error:
            self.refused.append(f"{error.sqlstate} {str(error).splitlines()[0]}")
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
        self.number += 1
        gid = f"g{self.number}"
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
            return self.settle()
        self.second.execute("BEGIN")
        self._changes(random, self.second, random.randrange(1, 4))

    def settle(self) -> None:
        """End the transaction that stays open."""
        if self.second.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self.second.execute("COMMIT")

    def decide_all(self) -> None:
        """End every transaction that is not ended."""
        self.settle()
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
        conflict = " ON CONFLICT DO NOTHING" if known.kind == "r" or known.primary_key else ""
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
        if not known.primary_key:
            return None
        free = [c for c in known.writable if c[0] not in known.primary_key + known.identity_index]
        if not free:
            return None
        column = name_of(random.choice(free)[0])
        insert = self._insert(random, known, 1).removesuffix(" ON CONFLICT DO NOTHING")
        key = ", ".join(name_of(name) for name in known.primary_key)
        return f"{insert} ON CONFLICT ({key}) DO UPDATE SET {column} = EXCLUDED.{column}"

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
            self._ddl(random, session)
            if random.random() < 0.6:
                self._changes(random, session, random.randrange(1, 4))

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
                self._ddl(random, session, known)

    def do_swap(self, random: Random) -> None:
        """A new table takes the place of an old one, which stays under another name or goes."""
        with self.transaction() as session:
            known = self._choose(random, session, kind="r")
            if known is None:
                return
            self.number += 1
            fresh = f"fresh{self.number}"
            self._create(random, session, rows=5, plain=True, name=(known.schema, fresh))
            before = catalogue.tables(session)
            if random.random() < 0.5:
                old = name_of(f"{known.table[:20]}_o{self.number}")
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
                before = catalogue.tables(session)
                acts = (self._add_volatile, self._retype, self._rename_column, self._add_volatile)
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
            self.number += 1
            table = f"{table}{self.number}"
        schema, table = name or (schema, table)
        style = random.choices(
            ("key", "key", "composite", "none", "index", "partitions", "child"),
            (5, 2, 2, 0 if plain else 1, 1, 0 if plain else 1, 0 if plain else 0.5),
        )[0]
        for statement in _definition(random, schema, table, style):
            session.execute(statement)
        if random.random() < 0.3 and style != "partitions":
            session.execute(f"ALTER TABLE {name_of(schema, table)} REPLICA IDENTITY FULL")
        catalogue.mark(session, before)
        known = catalogue.tables(session)[f"{schema}.{table}"]
        if rows:
            self.attempt(session, self._insert(random, known, rows))

    # --- DDL -------------------------------------------------------------------------------------

    def _ddl(
        self, random: Random, session: psycopg.Connection[Any], known: Known | None = None
    ) -> None:
        before = catalogue.tables(session)
        known = known or self._choose(random, session)
        if known is None:
            return
        acts: list[tuple[float, Callable[[Random, Known], list[str]]]] = [
            (3, self._add_column),
            (1, self._add_volatile),
            (2, self._drop_column),
            (2, self._rename_column),
            (1, self._retype),
            (2, self._rename_table),
            (1, self._drop_table),
            (1, self._recreate),
            (2, self._drop_key),
            (1, self._change_key),
            (2, self._identity),
            (0.5, self._schema),
            (0.7, self._view),
            (0.5, self._label),
        ]
        weights, makers = zip(*acts, strict=True)
        for statement in random.choices(makers, weights)[0](random, known):
            if not self.attempt(session, statement):
                break
        catalogue.mark(session, before)

    def _new_column(self, random: Random, known: Known) -> str:
        taken = {column[0] for column in known.columns}
        free = [name for name in COLUMN_NAMES if name not in taken]
        self.number += 1
        return random.choice(free) if free else f"c{self.number}"

    def _add_column(self, random: Random, known: Known) -> list[str]:
        kind = random.choice(list(TYPES))
        text = (
            f"ALTER TABLE {known.sql} ADD COLUMN {name_of(self._new_column(random, known))} {kind}"
        )
        if random.random() < 0.5:
            text += f" DEFAULT {literal(TYPES[kind](random))}"
            text += " NOT NULL" if random.random() < 0.4 else ""
        return [text]

    def _add_volatile(self, random: Random, known: Known) -> list[str]:
        name = name_of(self._new_column(random, known))
        return [f"ALTER TABLE {known.sql} ADD COLUMN {name} uuid DEFAULT gen_random_uuid()"]

    @staticmethod
    def _free(known: Known) -> list[tuple[str, str, bool, bool]]:
        return [c for c in known.columns if c[0] not in known.primary_key + known.identity_index]

    def _drop_column(self, random: Random, known: Known) -> list[str]:
        free = self._free(known)
        if len(free) < 2:
            return []
        return [f"ALTER TABLE {known.sql} DROP COLUMN {name_of(random.choice(free)[0])} CASCADE"]

    def _rename_column(self, random: Random, known: Known) -> list[str]:
        old = random.choice(known.columns)[0]
        new = self._new_column(random, known)
        return [f"ALTER TABLE {known.sql} RENAME COLUMN {name_of(old)} TO {name_of(new)}"]

    def _retype(self, random: Random, known: Known) -> list[str]:
        to = {
            "smallint": "int4", "integer": "int8", "character varying": "text", "numeric": "text",
            "boolean": "text", "date": "timestamp", "text": "varchar(30)", "uuid": "text",
        }  # fmt: skip
        key = known.primary_key + known.identity_index  # a date as a timestamp is another key
        free = [
            c
            for c in known.columns
            if c[1] in to and not c[3] and not (c[0] in key and c[1] == "date")
        ]
        if not free:
            return []
        name, kind, _required, _generated = random.choice(free)
        quoted = name_of(name)
        using = f" USING left({quoted}, 30)" if kind == "text" else ""
        return [f"ALTER TABLE {known.sql} ALTER COLUMN {quoted} TYPE {to[kind]}{using}"]

    def _rename_table(self, random: Random, known: Known) -> list[str]:
        self.number += 1
        return [
            f"ALTER TABLE {known.sql} RENAME TO {name_of(f'{known.table[:20]}_r{self.number}')}"
        ]

    def _drop_table(self, random: Random, known: Known) -> list[str]:
        return [f"DROP TABLE {known.sql} CASCADE"]

    def _recreate(self, random: Random, known: Known) -> list[str]:
        style = random.choice(("key", "composite"))
        return [
            f"DROP TABLE {known.sql} CASCADE",
            *_definition(random, known.schema, known.table, style),
        ]

    def _drop_key(self, random: Random, known: Known) -> list[str]:
        if not known.primary_key or known.kind != "r" or "'" in known.sql:
            return []
        find = (
            "DO $$ DECLARE c text; BEGIN SELECT conname INTO c FROM pg_constraint"
            f" WHERE conrelid = {known.oid} AND contype = 'p';"
            f" EXECUTE format('ALTER TABLE {known.sql} DROP CONSTRAINT %I', c); END $$"
        )
        keep = [f"ALTER TABLE {known.sql} REPLICA IDENTITY FULL"] if random.random() < 0.6 else []
        return [find, *keep]

    def _change_key(self, random: Random, known: Known) -> list[str]:
        """Another key: a generated column, so that it is unique at once."""
        if known.kind != "r":
            return []
        name = name_of(self._new_column(random, known))
        add = f"ALTER TABLE {known.sql} ADD COLUMN {name} uuid DEFAULT gen_random_uuid()"
        key = f"ALTER TABLE {known.sql} ADD PRIMARY KEY ({name})"
        return [*(self._drop_key(random, known)), add, key]

    def _identity(self, random: Random, known: Known) -> list[str]:
        if known.kind != "r":
            return []
        word = "FULL" if known.identity != "f" and random.random() < 0.8 else "DEFAULT"
        return [f"ALTER TABLE {known.sql} REPLICA IDENTITY {word}"]

    def _schema(self, random: Random, known: Known) -> list[str]:
        other = SCHEMAS[1 - SCHEMAS.index(known.schema)]
        return [f"ALTER TABLE {known.sql} SET SCHEMA {name_of(other)}"]

    def _view(self, random: Random, known: Known) -> list[str]:
        self.number += 1
        name = name_of("public", f"view{self.number}")
        if random.random() < 0.5:
            return [f"CREATE VIEW {name} AS SELECT 1 AS one FROM {known.sql}"]
        made = (
            f"CREATE MATERIALIZED VIEW {name} AS SELECT row_number() OVER () AS n FROM {known.sql}"
        )
        index = f"CREATE UNIQUE INDEX ON {name} (n)"
        return [made, index, f"REFRESH MATERIALIZED VIEW CONCURRENTLY {name}"]

    def _label(self, random: Random, known: Known) -> list[str]:
        self.number += 1
        return [f"ALTER TYPE mood ADD VALUE 'label{self.number}'"]


KEY_NAMES = ("id", "k 2", "Key3")


def _definition(random: Random, schema: str, table: str, style: str) -> list[str]:
    """Return the statements that create one table of a style."""
    name = name_of(schema, table)
    columns, tail, after = [], "", []
    key = [f"{name_of('id')} {random.choice(KEY_TYPES)}"]
    if style == "composite":
        key += [f"{name_of(n)} {random.choice(KEY_TYPES)}" for n in KEY_NAMES[1:]]
    match style:
        case "key" | "composite":
            names = [column.rsplit('"', 1)[0] + '"' for column in key]
            random.shuffle(names)
            columns += [*key, f"PRIMARY KEY ({', '.join(names)})"]
        case "none":
            columns += key
        case "index":
            columns += [f"{key[0]} NOT NULL UNIQUE"]
            after = [
                f"CREATE UNIQUE INDEX {name_of('ix ' + table)} ON {name} (id)",
                f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {name_of('ix ' + table)}",
            ]
        case "partitions":
            columns += ["id int4 PRIMARY KEY"]
            tail = " PARTITION BY HASH (id)"
            after = [
                f"CREATE TABLE {name_of(schema, f'{table[:20]} p{n}')} PARTITION OF {name}"
                f" FOR VALUES WITH (MODULUS 2, REMAINDER {n})"
                for n in range(2)
            ]
        case "child":
            columns += ["id int4 PRIMARY KEY"]
            child = name_of(schema, f"{table[:20]} child")
            after = [f"CREATE TABLE {child} (extra text, PRIMARY KEY (id)) INHERITS ({name})"]
    for column in random.sample(COLUMN_NAMES, random.randrange(1, 7)):
        kind = random.choice(list(TYPES))
        text = f"{name_of(column)} {kind}"
        if random.random() < 0.25:
            text += f" DEFAULT {literal(TYPES[kind](random))}"
        if random.random() < 0.2:
            text += " NOT NULL"
        if kind in ("text", "jsonb", "bytea") and random.random() < 0.7:
            after.append(f"ALTER TABLE {name} ALTER COLUMN {name_of(column)} SET STORAGE EXTERNAL")
        columns.append(text)
    if random.random() < 0.1:
        columns.append("gen int4 GENERATED ALWAYS AS (41 + 1) STORED")
    order = columns[:]
    if random.random() < 0.3:
        random.shuffle(order)
    return [f"CREATE TABLE {name} ({', '.join(order)}){tail}", *after]
