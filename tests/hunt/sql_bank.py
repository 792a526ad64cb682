"""A bank from PostgreSQL to PostgreSQL, exactly once: engine and target are killed, an auditor reads.

    python -m tests.hunt.sql_bank --kills 50 --reads 10000

Eight writers move money between accounts, several transfers in a transaction. Whoever reads the target, at any
moment, must find the same sum, and two changed accounts for each transfer; in the end, the source's rows, and
in the histories every version of them once.
"""

import argparse
import contextlib
import random
import threading
import time
from pathlib import Path

import psycopg
from tests.harness.engine_process import EngineProcess
from tests.harness.meanwhile import WAIT_S, meanwhile
from tests.harness.servers.postgres import Cluster, Database
from tests.hunt.bank_day import run_bank

ACCOUNTS = 200
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
DECLARE a int; b int; x int; swap int;
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
READ = """
SELECT sum(balance), (SELECT count(*) FROM replica.transfers) * 2 - sum(version), count(*),
  min(length(note)), (SELECT count(*) FROM replica.marks)
FROM replica.accounts
"""

ANNALS = """
SELECT (SELECT count(*) FROM (
    SELECT version <> lag(version) OVER of_row + 1 OR _valid_from <> lag(_valid_to) OVER of_row
      OR length(note) <> 3000 OR _is_current <> (lead(version) OVER of_row IS NULL) AS wrong
    FROM replica.accounts_history WINDOW of_row AS (PARTITION BY id ORDER BY _commit_lsn, _seq)
  ) versions WHERE wrong)
  + (SELECT count(*) FROM (SELECT id, balance, version, note FROM replica.accounts_history
    WHERE _is_current EXCEPT SELECT id, balance, version, note FROM replica.accounts) beyond)
  + abs((SELECT count(*) FROM replica.transfers_history) - (SELECT count(*) FROM replica.transfers))
  + abs((SELECT count(*) FROM replica.marks_history) - (SELECT count(*) FROM replica.marks))
"""
"""How many versions of a row do not follow the one before, or are doubled, or lack a value."""


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
                some = self._chance.choice((1, 1, 1, 2, 5, 40))
                try:
                    connection.execute("CALL move_money(%s)", [some])
                    connection.execute("INSERT INTO marks VALUES (%s, %s)", [self._number, n])
                    connection.commit()
                except psycopg.errors.DeadlockDetected:
                    connection.rollback()


class Auditor:
    """Reads the target's books again and again; ``wrong`` has what is not as promised."""

    def __init__(self, target: Cluster, accounts: int) -> None:
        self._target = target
        self._right = (accounts * BALANCE, 0, accounts, 3000)
        self.reads = self.states = 0
        self.wrong: list[str] = []

    def read(self, stop: threading.Event) -> None:
        last: object = None
        while not stop.is_set():
            try:
                with self._target.connect("bank") as connection:
                    while not stop.wait(0.002):
                        row = connection.execute(READ).fetchone()
                        assert row is not None
                        self.states += row != last
                        last = row
                        self.reads += 1
                        if row[:4] != self._right and len(self.wrong) < 9:
                            self.wrong.append(f"read {self.reads}: {row}")
            except psycopg.Error:  # the target was killed: it is read again when it is back
                stop.wait(0.05)


class Bank:
    """One run of the story."""

    def __init__(
        self,
        source: Database,
        target: Cluster,
        folder: Path,
        seed: int,
        *,
        accounts: int = ACCOUNTS,
    ) -> None:
        self._accounts = accounts
        self._source, self._target = source, target
        self._chance, self._seed = random.Random(seed), seed
        settings = {
            **source.properties(),
            "slot.name": "sql_bank",
            "publication.name": "sql_bank",
            "table.include.list": "public.accounts,public.transfers,public.marks",
            "offset.flush.interval.ms": 50,
            "slot.retry.delay.ms": 300,
            "retriable.restart.connector.wait.ms": 300,
        }
        sink = {
            "type": "sql",
            "url": target.dsn("bank"),
            "table.name.format": "replica.{table}",
            "history.mode": "beside",
        }
        self._engine = EngineProcess(folder, settings, sink)

    def play(self, *, kills: int, reads: int, writers: int, pause: float) -> Auditor:
        """Return the auditor at the end of it all."""
        source, target, engine = self._source, self._target, self._engine
        source.execute(TABLES.format(accounts=self._accounts, balance=BALANCE))
        target.execute("CREATE DATABASE bank")
        auditor = Auditor(target, self._accounts)
        tellers = [Teller(source, n, self._seed, pause) for n in range(writers)]
        try:
            with contextlib.ExitStack() as auditing:
                with meanwhile(*(teller.work for teller in tellers)):
                    engine.start()
                    engine.until(self._there, "the snapshot")
                    auditing.enter_context(meanwhile(auditor.read))
                    for number in range(kills):
                        self._live(auditor)
                        if number % 2:
                            engine.kill()
                            engine.start()
                        else:
                            target.kill()
                            target.start()
                    self._live(auditor)
                    engine.until(lambda: auditor.reads >= reads, "the reads", WAIT_S * 10)
                ((marks,),) = source.execute("SELECT count(*) FROM marks")
                engine.until(lambda: self._marks() == marks, "the rest to come")
        finally:
            engine.kill()
        return auditor

    def _there(self) -> bool:
        ((there,),) = self._target.execute("SELECT to_regclass('replica.accounts')", "bank")
        return there is not None

    def _marks(self) -> int:
        ((marks,),) = self._target.execute("SELECT count(*) FROM replica.marks", "bank")
        return int(marks)

    def _live(self, auditor: Auditor) -> None:
        """Wait until the target moved on, then for a random moment."""
        before = auditor.states
        self._engine.until(lambda: auditor.states > before + 1, "life")
        time.sleep(self._chance.random() * 0.3)  # the random moment itself


def verdict(source: Database, target: Cluster, auditor: Auditor) -> list[str]:
    """Return what is not as promised."""
    found = list(auditor.wrong)
    for table, order in (("accounts", "id"), ("transfers", "id"), ("marks", "teller, n")):
        query = "SELECT count(*), md5(string_agg(t::text, ',' ORDER BY {})) FROM {}.{} t"
        ours = source.execute(query.format(order, "public", table))
        theirs = target.execute(query.format(order, "replica", table), "bank")
        if ours != theirs:
            found.append(f"{table}: {ours} at the source, {theirs} in the target")
    ((wrong,),) = target.execute(ANNALS, "bank")
    if wrong:
        found.append(f"{wrong} versions of the history are not as promised")
    return found


def play(
    given: argparse.Namespace, database: Database, target: Cluster, folder: Path
) -> tuple[str, list[str]]:
    bank = Bank(database, target, folder, given.seed, accounts=given.accounts)
    auditor = bank.play(kills=given.kills, reads=given.reads, writers=given.writers, pause=0.02)
    wrong = verdict(database, target, auditor)
    ((moved,),) = database.execute("SELECT count(*) FROM transfers")
    done = (
        f"{moved:,} transfers by {given.writers} writers, {given.kills} kills, "
        f"{auditor.reads:,} reads of {auditor.states:,} states"
    )
    return done, wrong


if __name__ == "__main__":
    run_bank(
        __doc__ or "",
        {"kills": 50, "reads": 10_000, "writers": 8, "accounts": ACCOUNTS},
        Cluster.create,
        play,
        right="every read right, target equals source",
    )
