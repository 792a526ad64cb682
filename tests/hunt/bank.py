"""A bank whose books are kept on another server, exactly once: engine and server are killed, an auditor reads.

Writers move money between accounts, several transfers in a transaction. Whoever reads the books must find the
same sum wherever one transaction ends and the next begins.
"""

import random
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import psycopg
from tests.harness.engine_process import EngineProcess
from tests.harness.meanwhile import WAIT_S, meanwhile
from tests.harness.servers.postgres import Database

BALANCE = 1_000
TABLES = """
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, version int NOT NULL, note text);
CREATE TABLE transfers (id bigserial PRIMARY KEY, giver int REFERENCES accounts, taker int REFERENCES accounts,
  amount int);
CREATE TABLE marks (teller int, n int); -- without a key: a double would show
ALTER TABLE marks REPLICA IDENTITY FULL;
ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL;
INSERT INTO accounts SELECT g, {balance}, 0, repeat('x', 3000) FROM generate_series(1, {accounts}) g;
CREATE PROCEDURE move_money(transfers int) LANGUAGE plpgsql AS $$
DECLARE a int; b int; x int;
BEGIN
  FOR i IN 1 .. transfers LOOP
    a := 1 + floor(random() * {accounts}); b := 1 + floor(random() * ({accounts} - 1));
    IF b >= a THEN b := b + 1; END IF;
    x := floor(random() * 100);
    INSERT INTO transfers (giver, taker, amount) VALUES (a, b, x);
    UPDATE accounts SET balance = balance - x, version = version + 1 WHERE id = a;
    UPDATE accounts SET balance = balance + x, version = version + 1 WHERE id = b;
  END LOOP;
END $$;
"""
MOST_WRONG = 20
"""So much of what is wrong is told."""


class Service(Protocol):
    """The server that the books are kept on."""

    def kill(self) -> None:
        """End it at once."""

    def start(self) -> None:
        """Start it with all that it kept."""


class Books(Protocol):
    """What an auditor has read; ``seen`` grows while changes come, ``audits`` with each sum that was looked at."""

    wrong: list[str]
    seen: int
    audits: int

    def read(self, stop: threading.Event) -> None:
        """Read until ``stop``."""

    def whole(self, moved: int, marks: int) -> bool:
        """Return whether all of so many transfers, and marks, has come."""


class Teller:
    """Moves money until it is to stop."""

    def __init__(self, database: Database, number: int, seed: int, pause: float) -> None:
        self._database, self._number, self._pause = database, number, pause
        self._chance = random.Random(seed * 100 + number)

    def work(self, stop: threading.Event) -> None:
        n = 0
        with self._database.connect(autocommit=False) as connection:
            while not stop.wait(self._chance.random() * self._pause):
                n += 1
                some = self._chance.choice((1, 1, 1, 2, 5, 40, 200))
                try:
                    connection.execute("CALL move_money(%s)", [some])
                    connection.execute("INSERT INTO marks VALUES (%s, %s)", [self._number, n])
                    connection.commit()
                except psycopg.errors.DeadlockDetected:
                    connection.rollback()


class Bank:
    """One run of the story; ``kept`` is the server of the books."""

    def __init__(
        self, source: Database, kept: Service, folder: Path, seed: int, sink: dict[str, Any]
    ) -> None:
        self._source, self._kept = source, kept
        self._chance, self._seed = random.Random(seed), seed
        settings = {
            **source.properties(),
            "slot.name": source.name,
            "publication.name": source.name,
            "topic.prefix": "bank",
            "table.include.list": "public.accounts,public.transfers,public.marks",
            "publication.keyless.tables": "publish",
            "offset.flush.interval.ms": 50,
            "retriable.restart.connector.wait.ms": 300,
        }
        self._engine = EngineProcess(folder, settings, sink)

    def open(self, accounts: int) -> None:
        """Make the source's tables."""
        self._source.execute(TABLES.format(accounts=accounts, balance=BALANCE))

    def play(
        self, books: Books, *, kills: int, restarts: int, audits: int, writers: int, pause: float
    ) -> int:
        """Kill the engine, and restart the server, so often, and go on for so many audits; return how many
        transfers there are in the end."""
        engine, kept = self._engine, self._kept
        tellers = [Teller(self._source, n, self._seed, pause) for n in range(writers)]
        events = ["kill"] * kills + ["restart"] * restarts
        self._chance.shuffle(events)
        try:
            engine.start()
            engine.until(engine.ready, "the first start")
            with meanwhile(books.read):
                with meanwhile(*(teller.work for teller in tellers)):
                    for event in events:
                        self._live(books)
                        if event == "kill":
                            engine.kill()
                            engine.start()
                        else:
                            kept.kill()
                            kept.start()
                    self._live(books)
                    engine.until(lambda: books.audits >= audits, "the audits", WAIT_S * 10)
                ((moved, marks),) = self._source.execute(
                    "SELECT (SELECT count(*) FROM transfers), (SELECT count(*) FROM marks)"
                )
                engine.until(lambda: books.whole(moved, marks), "the rest to come", WAIT_S * 10)
        finally:
            engine.kill()
        return int(moved)

    def _live(self, books: Books) -> None:
        """Wait until the books moved on, then for a random moment."""
        before = books.seen
        self._engine.until(lambda: books.seen > before + 1, "life")
        time.sleep(self._chance.random() * 0.4)  # the random moment itself
