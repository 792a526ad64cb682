"""The engine with plugin.name=yboutput: what arrives in JSON records and in the change log.

Verified against a protocol double built from published sources (tests/harness/servers/yboutput); no
YugabyteDB server was run. The connector is PostgreSQL's, so rows are flat; YugabyteDB's own cells
(`{"value": …, "set": true}`) are its connector's matter (tests/integration/yugabyte).
"""

from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.harness.json_lines import records
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.yboutput_slot import identity

from waltap_sinks.changelog import ChangeLog

UNSENT = "__debezium_unavailable_value"


class Written(PipelineRig):
    """Runs into a file of JSON lines and, where ``log`` says so, into a change log instead."""

    def __init__(self, database: Database, folder: Path, *, log: bool = False) -> None:
        out = {"sink.type": "changelog", "sink.path": str(folder / "log")}
        if not log:
            out = {"sink.type": "jsonl", "sink.path": str(folder / "out")}
        own = {
            "plugin.name": "yboutput",
            "topic.prefix": "s",
            "publication.autocreate.mode": "filtered",
            "publication.keyless.tables": "publish",
        }
        super().__init__(database, folder, own | out)

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return (op, key, before, after) of the records of one table; a tombstone is ("", key)."""
        found: list[tuple[Any, ...]] = []
        for record in records(self.folder / "out"):
            value = record["value"]
            if record["topic"] != f"s.public.{table}":
                continue
            if value is None:
                found.append(("", record["key"]))
            else:
                found.append((value["op"], record["key"], value["before"], value["after"]))
        return found

    def logged(self, table: str) -> list[dict[str, Any]]:
        parts = ChangeLog(str(self.folder / "log")).rows("public", table)
        return [row for part in parts for row in part.to_pylist()]


def row(id_: int, name: str | None, aura: int | None) -> dict[str, Any]:
    return {"id": id_, "name": name, "aura": aura}


STATEMENTS = (
    "INSERT INTO {t} VALUES (2, NULL, NULL)",
    "UPDATE {t} SET aura = 99 WHERE id = 1",
    "UPDATE {t} SET name = NULL WHERE id = 1",
    "UPDATE {t} SET name = 'b', aura = 10 WHERE id = 1",
    "UPDATE {t} SET id = 3 WHERE id = 2",
    "BEGIN; INSERT INTO {t} VALUES (4, 'd', 4); UPDATE {t} SET aura = 1 WHERE id = 4;"
    "DELETE FROM {t} WHERE id = 4; COMMIT",
    "DELETE FROM {t} WHERE id = 1",
)
K1, K2, K3, K4 = ({"id": number} for number in (1, 2, 3, 4))


def expected(
    updates: list[tuple[Any, Any]], fourth: Any, gone: tuple[Any, Any]
) -> list[tuple[Any, ...]]:
    """Return the records: of the first row's ``updates`` (before, after), of the fourth's update, and the rows of
    the deletes of the fourth and the first."""
    return [
        ("r", K1, None, row(1, "a", 10)),
        ("c", K2, None, row(2, None, None)),
        *(("u", K1, before, after) for before, after in updates),
        *(("d", K2, row(2, None, None), None), ("", K2), ("c", K3, None, row(3, None, None))),
        *(("c", K4, None, row(4, "d", 4)), ("u", K4, *fourth)),
        *(("d", K4, gone[0], None), ("", K4), ("d", K1, gone[1], None), ("", K1)),
    ]


BY_KEY = row(4, None, None), row(1, None, None)
EXPECTED = {
    "change": expected(
        # of the second update the first null is NULL, the other was not sent
        [(None, row(1, UNSENT, 99)), (None, row(1, None, None)), (None, row(1, "b", 10))],
        (None, row(4, UNSENT, 1)), BY_KEY,
    ),
    "default": expected(
        [(None, row(1, "a", 99)), (None, row(1, None, 99)), (None, row(1, "b", 10))],
        (None, row(4, "d", 1)), BY_KEY,
    ),
    "full": expected(
        [(row(1, "a", 10), row(1, "a", 99)), (row(1, "a", 99), row(1, None, 99)), (row(1, None, 99), row(1, "b", 10))],
        (row(4, "d", 4), row(4, "d", 1)), (row(4, "d", 1), row(1, "b", 10)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("old_generation", [False, True], ids=["new", "old"])
def test_records_show_what_each_identity_can(yb_database, tmp_path, old_generation):
    """One run captures a table of each identity; a key change is a delete and an insert. Under NOTHING inserts
    arrive, and the server refuses the rest."""
    yb_database.execute(
        f'ALTER DATABASE "{yb_database.name}" SET yboutput.old_generation = {old_generation}'
    )
    for name in (*EXPECTED, "nothing"):
        yb_database.execute(f"CREATE TABLE {name}_t (id int PRIMARY KEY, name text, aura int)")
        identity(yb_database, f"{name}_t", name.upper())
        yb_database.execute(f"INSERT INTO {name}_t VALUES (1, 'a', 10)")
    pipeline = Written(yb_database, tmp_path)
    pipeline.catch_up()
    for statement in STATEMENTS:
        for name in EXPECTED:
            yb_database.execute(statement.format(t=f"{name}_t"))
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="publishes updates"):
        yb_database.execute("UPDATE nothing_t SET name = 'b'")
    pipeline.deliver("INSERT INTO nothing_t VALUES (2, 'b', 2)")
    assert {name: pipeline.rows(f"{name}_t") for name in EXPECTED} == EXPECTED
    assert [change[0] for change in pipeline.rows("nothing_t")] == ["r", "c"]
    values = [record["value"] for record in records(tmp_path / "out")]
    sources = [
        value["source"] for value in values if value and value["source"]["table"] == "change_t"
    ]
    lsns = [source["lsn"] for source in sources[1:]]
    assert lsns == sorted(lsns)
    assert len({source["txId"] for source in sources[-4:-1]}) == 1


def test_replaying_the_change_log_of_several_runs_gives_the_table(yb_database, tmp_path):
    """Keys that move, rows made and removed in one transaction, values set and unset."""
    names = ["id", "name", "aura", "price"]
    yb_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text NOT NULL, aura int, price numeric(9,2))"
    )
    identity(yb_database, "t", "CHANGE")
    yb_database.execute(
        "INSERT INTO t SELECT g, 'n' || g, g, g * 1.25 FROM generate_series(1, 40) g"
    )
    pipeline = Written(yb_database, tmp_path, log=True)
    pipeline.catch_up()
    for step in range(1, 21):
        yb_database.execute(
            f"UPDATE t SET aura = aura + 1 WHERE id % 4 = {step % 4};"
            f"UPDATE t SET price = NULL WHERE id = {step};"
            f"UPDATE t SET id = id + 100, name = 'moved' WHERE id = {step + 20};"
            f"INSERT INTO t VALUES ({step + 200}, 'new', NULL, 0.5);"
            f"DELETE FROM t WHERE id = {step * 2};"
            f"UPDATE t SET name = 'again' WHERE id = {step + 119}"
        )
        if step % 7 == 0:
            pipeline.catch_up()
    pipeline.catch_up()
    log, found = pipeline.logged("t"), dict[int, dict[str, Any]]()
    for change in log:  # as a reader must apply it: what was not sent keeps its value
        kept = found.pop(change["id"], {})
        if change["_op"] != "d":
            unsent = change["_unchanged"] or ()
            found[change["id"]] = {n: kept[n] if n in unsent else change[n] for n in names}
    listed = yb_database.execute(f"SELECT {', '.join(names)} FROM t")
    assert found == {line[0]: dict(zip(names, line, strict=True)) for line in listed}
    assert len(found) > 30
    order = [(r["_commit_lsn"], r["_seq"]) for r in log if r["_op"] != "r"]
    assert order == sorted(set(order))
