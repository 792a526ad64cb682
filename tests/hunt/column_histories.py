"""Random histories of one table's columns, described by an engine that lags behind them.

The judge knows each column's number at each change. It keeps rows by number, as a target does, once with
these numbers and once with those that were given, and compares the columns that are left. A doubt has the
rows read again. The server is a model of its catalogue; ``python -m tests.hunt.column_histories HISTORIES
SEED`` plays them on a real one, too, which must give the same numbers.
"""

import logging
import random
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Database

from waltap.changes.decode.relation import Column, DataType, Relation
from waltap.ports.source.relation_memory import RelationMemory
from waltap_postgres.catalog.catalogue import CatalogTable, PostgresCatalogue
from waltap_postgres.catalog.description import (
    LISTED_SQL,
    TIMESTAMPS_SQL,
    VISIBLE_SQL,
    RelationDescriber,
)
from waltap_postgres.properties import PostgresProperties

NAMES = ("a", "b", "c", "x", "y")
TYPES = {
    "int": (23, "4itf"),
    "bigint": (20, "8dtf"),
    "text": (25, "-1ift"),
    "date": (1082, "4itf"),
    "float8": (701, "8dtf"),
}
"""OID, and how the server stores a value."""
WIDER = {"int": "bigint", "date": "text", "bigint": "text", "float8": "text"}
WAYS = ("insert", "update", "add", "drop", "rename", "exchange", "retype", "replace")
WEIGHTS = (5, 2, 3, 2.5, 2, 0.7, 0.7, 1)
ENGINE = ("catch up", "catch up", "partly", "restart")


@dataclass(frozen=True)
class Mix:
    """Shares: ``early`` transactions have an id before the transaction before them has one, ``apart`` ones
    have either DDL or changes."""

    savepoint: float = 0.0
    early: float = 0.0
    apart: float = 0.0
    catch_up: float = 0.1


def _statements(rng: random.Random, columns: dict[str, str], rows: list[int]) -> list[str]:
    """Draw one act; ``columns`` and ``rows`` are what the table has then."""
    own = [name for name in columns if name != "id"]
    free = [name for name in NAMES if name not in columns]
    act = rng.choices(WAYS, WEIGHTS)[0]
    if act == "insert" or not rows:
        rows.append(len(rows) + 1)
        return [f"INSERT INTO t (id) VALUES ({len(rows)})"]
    if act == "update":
        return [f"UPDATE t SET id = id WHERE id = {rng.choice(rows)}"]
    if act == "add" and free:
        name, kind = rng.choice(free), rng.choice(list(TYPES))
        columns[name] = kind
        return [f"ALTER TABLE t ADD {name} {kind}"]
    if not own:
        return []
    name = rng.choice(own)
    kind = columns[name]
    renamed: dict[str, str] = {}
    if act in ("drop", "replace"):
        del columns[name]
        if act == "drop":
            return [f"ALTER TABLE t DROP {name}"]
        columns[name] = rng.choice((kind, kind, *TYPES))
        return [f"ALTER TABLE t DROP {name}", f"ALTER TABLE t ADD {name} {columns[name]}"]
    if act == "retype" and kind in WIDER:
        columns[name] = WIDER[kind]
        return [f"ALTER TABLE t ALTER {name} TYPE {columns[name]}"]
    if act == "rename" and free:
        renamed = {name: rng.choice(free)}
        found = [f"ALTER TABLE t RENAME {name} TO {renamed[name]}"]
    elif act == "exchange" and len(own) > 1:
        other = rng.choice([each for each in own if each != name])
        renamed = {name: other, other: name}
        pairs = ((name, "q"), (other, name), ("q", other))
        found = [f"ALTER TABLE t RENAME {old} TO {new}" for old, new in pairs]
    else:
        return []
    kept = {renamed.get(each, each): kind for each, kind in columns.items()}
    columns.clear()
    columns.update(kept)
    return found


def drawn(seed: int, mix: Mix) -> list[list[str]]:
    """Return transactions of statements; the first one creates the table."""
    rng = random.Random(seed)
    columns, rows = {"id": "int"}, list[int]()
    for name in rng.sample(NAMES, rng.randint(1, 3)):
        columns[name] = rng.choice(list(TYPES))
    made = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    found = [[f"CREATE TABLE t ({made}, PRIMARY KEY (id))"]]
    if rng.random() < 0.85:
        found.append([*_statements(rng, columns, rows), "catch up"])
    apart = rng.random() < mix.apart
    for _ in range(rng.randint(3, 9)):
        one = list[str]()
        for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
            more = _statements(rng, columns, rows)
            if more and rng.random() < mix.savepoint:
                more = ["SAVEPOINT s", *more, "RELEASE s"]
            if apart and one and ("ALTER" in " ".join(more)) != ("ALTER" in " ".join(one)):
                found.append(one)
                one = []
            one += more
        if rng.random() < 0.3:
            one.insert(0, f"burn {rng.choice((1, 1, 3, 20))}")
        if rng.random() < mix.early:
            one.insert(0, "early")
        if rng.random() < mix.catch_up:
            one.append(rng.choice(ENGINE))
        found.append(one)
    rows.append(len(rows) + 1)
    return [*found, [f"INSERT INTO t (id) VALUES ({len(rows)})"]]


@dataclass
class _Row:
    name: str
    kind: str
    xmin: int
    dropped: bool = False


class ModelledCatalogue:
    """Answer as `PostgresCatalogue` for one table, from the rows of its columns by number."""

    properties = PostgresProperties.model_construct()
    shows_transactions = True

    def __init__(self) -> None:
        self.xid = 1000
        self.running = set[int]()
        self.rows, self.committed = dict[int, _Row](), dict[int, _Row]()

    def next(self) -> int:
        self.xid += 1
        return self.xid - 1

    def alter(self, words: list[str], xid: int) -> None:
        """Do what ALTER TABLE does to the rows, up to PostgreSQL 17."""
        numbers = {row.name: n for n, row in self.rows.items() if not row.dropped}
        if words[0] == "ADD":
            self.rows[max(self.rows) + 1] = _Row(words[1], words[2], xid)
            return
        number = numbers[words[1]]
        row = self.rows[number]
        row.xmin = xid
        if words[0] == "DROP":
            row.dropped = True
        elif words[0] == "RENAME":
            row.name = words[3]
        else:
            row.kind = words[3]
            for n, each in self.rows.items():
                each.xmin = xid if n >= number else each.xmin

    def query(self, sql: str, _parameters: object = ()) -> list[tuple[Any, ...]]:
        known = {
            VISIBLE_SQL: (True, self.xid, False),
            TIMESTAMPS_SQL: (False,),
            LISTED_SQL: (None,),
        }
        return [known.get(sql, (self.xid - 1,))]

    def wal_end(self) -> int:
        return 0

    def exists(self, _oid: int) -> bool:
        return True

    def refresh_types(self, _oids: object) -> None:
        pass

    def data_type(self, oid: int) -> DataType:
        name, layout = next((n, layout) for n, (known, layout) in TYPES.items() if known == oid)
        return DataType(oid=oid, schema="pg_catalog", name=name, layout=layout)

    def tables(self) -> list[CatalogTable]:
        return [self.table_of(1)]

    def table_seen(self, oid: int) -> tuple[CatalogTable, str]:
        running = ",".join(map(str, sorted(self.running)))
        return self.table_of(oid), f"{min(self.running, default=self.xid)}:{self.xid}:{running}"

    def table_of(self, _oid: int) -> CatalogTable:
        rows = sorted(self.committed.items())
        present = [(n, row) for n, row in rows if not row.dropped]
        columns = tuple(
            Column(
                name=row.name,
                type_oid=TYPES[row.kind][0],
                in_identity=n == 1,
                nullable=n != 1,
                number=n,
            )
            for n, row in present
        )
        return CatalogTable(
            relation=Relation(
                oid=1, schema="public", table="t", primary_key=("id",), columns=columns
            ),
            partitioned=False,
            partition=False,
            estimate=0,
            primary_key=("id",),
            changed={n: (row.xmin,) for n, row in present},
            dropped={n: row.xmin for n, row in rows if row.dropped},
            layouts={n: (TYPES[row.kind][1], -1) for n, row in rows if row.dropped},
        )


@dataclass
class Engine:
    """Describe what the stream sends, when it is told to."""

    catalogue: Any
    # Each change with the wire's relation, and how many statements altered the table before.
    stream: list[tuple[Relation, int]] = field(default_factory=list)
    # The numbers that were given by name, for each change of the stream.
    given: list[dict[str, int | None]] = field(default_factory=list)
    # Changes whose rows were read again after a doubt; -1: never in doubt.
    read_again: int = -1

    def __post_init__(self) -> None:
        self.doubt = False
        self.memory = RelationMemory()
        self.memory.open("x")
        self.restart()

    def restart(self) -> None:
        self.describer = RelationDescriber(self.catalogue, self.memory, follows_numbers=True)
        self.describer.start(self.catalogue.tables())
        self.altered, self.until = -1, sys.maxsize

    def read(self, share: float = 1.0) -> None:
        start = len(self.given)
        for wire, altered in self.stream[start : start + round(share * (len(self.stream) - start))]:
            if altered != self.altered or len(self.given) >= self.until:
                self.altered, self.until = altered, sys.maxsize
                self.numbers = {c.name: c.number for c in self.describer.describe(wire).columns}
                if self.memory.returns(wire.oid):
                    self.doubt, self.until = True, len(self.stream)
            self.given.append(self.numbers)
        if self.doubt and len(self.given) == len(self.stream):
            self.doubt, self.read_again = False, len(self.given)


@dataclass
class Verdict:
    lines: list[str]
    # Values that are wrong in a target, before and after doubts had rows read again.
    wrong: int = 0
    silent: int = 0
    doubted: bool = False


def played(history: list[list[str]], seed: int) -> tuple[Verdict, list[dict[str, int | None]]]:
    """Play a history on the model; return the verdict and the given numbers."""
    rng, model = random.Random(seed), ModelledCatalogue()
    made = history[0][0].removeprefix("CREATE TABLE t (").split(", ")[:-1]
    first = model.next()
    pairs = (column.split() for column in made)
    model.rows = {n: _Row(name, kind, first) for n, (name, kind) in enumerate(pairs, 1)}
    model.committed = {n: replace(row) for n, row in model.rows.items()}
    engine, truth, pending, altered = Engine(model), list[tuple[str, dict[str, int]]](), 0, 0
    for transaction, following in zip(history[1:], [*history[2:], []], strict=True):
        ids = [pending] if pending else []
        pending = 0
        if "early" in following and "early" not in transaction:
            pending = model.next()
            model.running.add(pending)
        wires = list[tuple[list[Column], int]]()
        nested = False
        for statement in transaction:
            words = statement.split()
            if words[0] == "burn":
                model.xid += int(words[1])
            elif words[0] in ("SAVEPOINT", "RELEASE"):
                nested = words[0] == "SAVEPOINT"
                ids = ids[:1]
            elif statement not in ENGINE:
                if not ids:
                    ids.append(model.next())
                if nested and len(ids) == 1:
                    ids.append(model.next())
                if words[0] == "ALTER":
                    altered += 1
                    model.alter(words[3:], ids[-1])
                elif words[0] != "early":
                    present = {n: row for n, row in sorted(model.rows.items()) if not row.dropped}
                    columns = [
                        Column(name=row.name, type_oid=TYPES[row.kind][0], in_identity=n == 1)
                        for n, row in present.items()
                    ]
                    truth.append((words[-1].strip("()"), {r.name: n for n, r in present.items()}))
                    wires.append((columns, altered))
        model.running -= set(ids)
        model.committed = {n: replace(row) for n, row in model.rows.items()}
        for columns, before in wires:
            wire = Relation(oid=1, schema="public", table="t", columns=tuple(columns), xid=ids[0])
            engine.stream.append((wire, before))
        _engine_acts(engine, transaction, rng)
    engine.read()
    lines = [f"  {'; '.join(transaction)}" for transaction in history]
    left = [n for n, row in model.rows.items() if not row.dropped]
    return _judged(truth, engine, left, lines), engine.given


def _engine_acts(engine: Engine, transaction: list[str], rng: random.Random) -> None:
    if "restart" in transaction:
        engine.restart()
    elif "partly" in transaction:
        engine.read(rng.random())
    elif "catch up" in transaction:
        engine.read()


def _judged(
    truth: list[tuple[str, dict[str, int]]], engine: Engine, left: list[int], lines: list[str]
) -> Verdict:
    source, target = dict[str, dict[int, int]](), dict[str, dict[int | None, int]]()
    for n, ((row, numbers), given) in enumerate(zip(truth, engine.given, strict=True)):
        source[row] = dict.fromkeys(numbers.values(), n)
        target[row] = dict.fromkeys(given.values(), n)
        if numbers != given:
            lines.append(f"    change {n} has {numbers}, was given {given}")
    wrong = [row for row in source if any(source[row].get(n) != target[row].get(n) for n in left)]
    silent = [row for row in wrong if max(source[row].values()) >= engine.read_again]
    return Verdict(lines, len(wrong), len(silent), engine.read_again >= 0)


def judged(seeds: range, mix: Mix) -> Counter[str]:
    """Play histories on the model; count those with a doubt, with wrong values, and without notice of
    them. The last ones are printed."""
    counts = Counter[str]()
    for seed in seeds:
        verdict, _ = played(drawn(seed, mix), seed)
        counts += Counter(
            doubted=int(verdict.doubted), wrong=min(verdict.wrong, 1), silent=min(verdict.silent, 1)
        )
        if verdict.silent:
            print(f"seed {seed}, {mix}", *verdict.lines, sep="\n")
    return counts


def _on_a_server(
    history: list[list[str]], database: Database, seed: int
) -> list[dict[str, int | None]]:
    """Return the numbers that are given on a real server; each session of the slot announces relations."""
    rng = random.Random(seed)
    with database.connect(autocommit=True) as one, database.connect(autocommit=True) as other:
        other.execute("DROP TABLE IF EXISTS t")
        other.execute(history[0][0].encode())
        catalogue = PostgresCatalogue(other, ModelledCatalogue.properties)
        changes = "SELECT data FROM pg_logical_slot_get_binary_changes('s', NULL, NULL, 'proto_version', '1',"
        changes += " 'publication_names', 'p')"
        other.execute(changes.encode()).fetchall()
        engine, altered, versions = Engine(catalogue), 0, list[int]()
        for transaction in history[1:]:
            one.execute("BEGIN")
            for statement in transaction:
                if statement.startswith("burn"):
                    for _ in range(int(statement.split()[1])):
                        other.execute("SELECT txid_current()")
                elif statement not in ENGINE:
                    one.execute(statement.encode())
                    altered += statement.startswith("ALTER")
                    versions += [altered] * statement.startswith(("INSERT", "UPDATE"))
            one.execute("COMMIT")
            xid, wire = 0, None
            for (data,) in other.execute(changes.encode()).fetchall():
                if data[:1] == b"B":
                    (xid,) = struct.unpack_from(">I", data, 17)
                elif data[:1] == b"R":
                    wire = _relation(data, xid)
                elif data[:1] in b"IU":
                    assert wire is not None
                    engine.stream.append((wire, versions[len(engine.stream)]))
            _engine_acts(engine, transaction, rng)
        engine.read()
        return engine.given


def _relation(data: bytes, xid: int) -> Relation:
    (oid,) = struct.unpack_from(">I", data, 1)
    schema, table, rest = data[5:].split(b"\0", 2)
    (count,) = struct.unpack_from(">H", rest, 1)
    columns, rest = list[Column](), rest[3:]
    for _ in range(count):
        name, after = rest[1:].split(b"\0", 1)
        kind, modifier = struct.unpack_from(">Ii", after)
        columns.append(
            Column(name=name.decode(), type_oid=kind, typmod=modifier, in_identity=bool(rest[0]))
        )
        rest = after[8:]
    return Relation(
        oid=oid, schema=schema.decode(), table=table.decode(), columns=tuple(columns), xid=xid
    )


def main(most: int, seed: int) -> None:
    logging.getLogger("waltap_postgres").setLevel(logging.ERROR)
    mix = Mix(savepoint=0.15)
    seeds = range(seed, seed + most)
    print(dict(judged(seeds, mix)))
    with own_server() as server:
        database = server.create_database("numbers")
        database.execute("CREATE PUBLICATION p FOR ALL TABLES")
        database.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        for each in seeds:
            history = drawn(each, mix)
            verdict, modelled = played(history, each)
            given = _on_a_server(history, database, each)
            if given != modelled:
                print(f"seed {each}: the server gives others", *verdict.lines, *given, sep="\n")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
