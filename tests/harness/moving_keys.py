"""A table whose rows change their keys all the time, with large values that such changes do not send."""

import random
import sqlite3
import threading
from pathlib import Path

import psycopg
from tests.harness.meanwhile import RoundPortions
from tests.harness.servers.postgres import Database

KEYS = 40
TABLE = (
    "CREATE TABLE moving (id int PRIMARY KEY, v int, large text);"
    "ALTER TABLE moving ALTER large SET STORAGE EXTERNAL;"
    f"INSERT INTO moving SELECT n, 0, repeat(n || '.', 2000) FROM generate_series(1, {KEYS}, 2) n"
)


def move_keys(database: Database, portions: RoundPortions, ended: threading.Event) -> None:
    """Write a transaction a round until ``ended``; a commit takes a while, so that readers see it late."""
    chance = random.Random()
    with database.connect(autocommit=True) as connection:
        connection.execute("SET commit_delay = 8000; SET commit_siblings = 0")
        for _ in portions(ended):
            try:
                with connection.transaction():
                    for _ in range(chance.randint(1, 4)):
                        _change(connection, chance)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                continue


def _change(connection: psycopg.Connection, chance: random.Random) -> None:
    one, other = chance.randint(1, KEYS), chance.randint(1, KEYS)
    statement, *values = chance.choice([
        ("UPDATE moving SET id = %s WHERE id = %s", other, one),
        ("UPDATE moving SET id = %s WHERE id = %s", other, one),
        ("UPDATE moving SET v = v + 1 WHERE id = %s", one),
        ("DELETE FROM moving WHERE id = %s", one),
        ("INSERT INTO moving VALUES (%s, 1, repeat(%s, 2000))", one, f"{chance.random():.4}"),
    ])  # fmt: skip
    try:
        with connection.transaction():
            connection.execute(statement, values)
    except psycopg.errors.UniqueViolation:
        pass  # the key has a row


def same_in(target: Path, database: Database) -> bool:
    with sqlite3.connect(target) as connection:
        found = connection.execute("SELECT id, v, large FROM moving ORDER BY id").fetchall()
    rows = database.execute("SELECT id, v, large FROM moving ORDER BY id")
    return found == [(int(key), int(v), large) for key, v, large in rows]
