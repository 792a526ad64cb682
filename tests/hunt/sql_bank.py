"""A bank from PostgreSQL to PostgreSQL, exactly once: engine and target are killed, an auditor reads.

    python -m tests.hunt.sql_bank --kills 25 --restarts 25 --audits 10000

Whoever reads the target, at any moment, must find the same sum, and two changed accounts for each transfer; in the
end, the source's rows, and in the histories every version of them once.
"""

import argparse
import threading
from pathlib import Path
from typing import Any

import psycopg
from tests.harness.servers.postgres import Cluster, Database
from tests.hunt.bank import BALANCE, MOST_WRONG, Bank
from tests.hunt.by_hand import Played, lasting, run_by_hand

ACCOUNTS = 200
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


class Auditor:
    """Reads the target's books again and again; ``wrong`` has what is not as promised, ``seen`` is how many states it
    saw."""

    def __init__(self, target: Cluster, accounts: int) -> None:
        self._target = target
        self._right = (accounts * BALANCE, 0, accounts, 3000)
        self.seen = self.audits = 0
        self.wrong: list[str] = []

    def read(self, stop: threading.Event) -> None:
        last: object = None
        while not stop.is_set():
            try:
                with self._target.connect("bank") as connection:
                    while not stop.wait(0.002):
                        row = connection.execute(READ).fetchone()
                        assert row is not None
                        self.seen += row != last
                        last = row
                        self.audits += 1
                        if row[:4] != self._right and len(self.wrong) < MOST_WRONG:
                            self.wrong.append(f"read {self.audits}: {row}")
            except psycopg.Error:  # the target was killed: it is read again when it is back
                stop.wait(0.05)

    def whole(self, moved: int, marks: int) -> bool:
        ((came,),) = self._target.execute("SELECT count(*) FROM replica.marks", "bank")
        return bool(came >= marks)


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


def play_sql(
    source: Database, target: Cluster, folder: Path, seed: int, *, accounts: int, **counts: Any
) -> tuple[Auditor, list[str]]:
    """Return the auditor at the end of it all, and what is not as promised."""
    target.execute("CREATE DATABASE bank")
    sink = {
        "type": "sql",
        "url": target.dsn("bank"),
        "table.name.format": "replica.{table}",
        "history.mode": "beside",
    }
    bank, auditor = Bank(source, target, folder, seed, sink), Auditor(target, accounts)
    bank.open(accounts)
    bank.play(auditor, **counts)
    return auditor, verdict(source, target, auditor)


def play(given: argparse.Namespace, server: Cluster, folder: Path) -> Played:
    with lasting(Cluster.create()) as target:
        auditor, wrong = play_sql(
            server.create_database("bank"), target, folder, given.seed, accounts=given.accounts,
            kills=given.kills, restarts=given.restarts, audits=given.audits, writers=given.writers, pause=0.02,
        )  # fmt: skip
    kills = f"{given.kills} kills, {given.restarts} restarts"
    return f"{kills}, {auditor.audits:,} reads of {auditor.seen:,} states", wrong


if __name__ == "__main__":
    run_by_hand(
        __doc__ or "",
        {"kills": 25, "restarts": 25, "audits": 10_000, "writers": 8, "accounts": ACCOUNTS},
        play,
        right="every read right, target equals source",
    )
