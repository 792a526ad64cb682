"""Scenarios of events, on double A: PostgreSQL with yboutput, behind a proxy that refuses and counts; 17 and 18: Debezium's
transforms for YugabyteDB, by their Java names.

Verified against a protocol double built from published sources; no YugabyteDB server was run.
"""

from typing import Any

import psycopg
import pytest
from tests.harness.yugabyte.pipeline import YugabytePipeline, cell

K1, K2, K3, K4 = ({"id": cell(number)} for number in range(1, 5))
LAST = {"id": cell(9999)}
Events = list[tuple[str, Any, Any, Any]]


def row(number: int, name: object, aura: object) -> dict[str, object]:
    return {"id": cell(number), "name": cell(name), "aura": cell(aura)}


def key_of(number: int) -> dict[str, object]:
    return row(number, None, None)


def streamed(
    pipeline: YugabytePipeline, *statements: str, last: Any = LAST, **settings: Any
) -> Events:
    """Return the events of ``statements``, each a transaction."""
    database = pipeline.server.database
    with pipeline.running(**settings) as run:
        database.run(*statements)
        database.execute("INSERT INTO t (id) VALUES (9999)")
        run.until(lambda: any(event[1] == last for event in pipeline.events()), "the last row")
    assert pipeline.server.refused == []
    return [event for event in pipeline.events() if event[1] != last]


CHANGES = (
    "INSERT INTO t VALUES (1, 'a', 10)",
    "INSERT INTO t VALUES (2, NULL, NULL)",
    "UPDATE t SET aura = 99 WHERE id = 1",
    "UPDATE t SET aura = NULL WHERE id = 1",
    "UPDATE t SET name = 'b', aura = 10 WHERE id = 1",
    "DELETE FROM t WHERE id = 1",
    "UPDATE t SET id = 3 WHERE id = 2",
    "INSERT INTO t VALUES (4, 'd', 4); UPDATE t SET aura = 1 WHERE id = 4; DELETE FROM t WHERE id = 4",
    "TRUNCATE t",
)
UNSENT = {"id": cell(1), "name": None, "aura": cell(99)}
BY_CHANGE: Events = [
    ("c", K1, None, row(1, "a", 10)),
    ("c", K2, None, row(2, None, None)),
    ("u", K1, None, UNSENT),
    ("u", K1, None, {**UNSENT, "aura": cell(None)}),
    ("u", K1, None, row(1, "b", 10)),
    ("d", K1, key_of(1), None),
    ("d", K2, key_of(2), None),
    ("c", K3, None, row(3, None, None)),
    ("c", K4, None, row(4, "d", 4)),
    ("u", K4, None, {"id": cell(4), "name": None, "aura": cell(1)}),
    ("d", K4, key_of(4), None),
]


def test_scenarios_01_to_08_and_29_of_identity_change(pipeline):
    """One stream for all, so that it is one start: an event each, and none of the TRUNCATE."""
    assert streamed(pipeline, *CHANGES) == BY_CHANGE
    reported = [(source["txId"], source["lsn"]) for source in pipeline.sources()][: len(BY_CHANGE)]
    singles = [(number + 1, 3 * number) for number in range(1, 7)]
    assert reported == [*singles, (8, 21), (8, 22), (9, 25), (9, 26), (9, 27)]
    records = pipeline.records()
    deletes = [n for n, r in enumerate(records) if r["value"] and r["value"]["op"] == "d"]
    assert [records[n + 1]["key"] for n in deletes] == [K1, K2, K4], "each has a tombstone"
    assert {records[n + 1]["value"] for n in deletes} == {None}
    value = records[1]["value"]
    assert list(value) == ["before", "after", "source", "op", "ts_ms", "transaction"]
    assert value["transaction"] is None
    source = value["source"]
    assert list(source) == [
        "version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "schema", "table",
        "txId", "lsn", "xmin",
    ]  # fmt: skip
    reported_of = ("connector", "snapshot", "sequence", "txId", "lsn", "xmin")
    assert [source[name] for name in reported_of] == [
        "postgresql",
        "false",
        '["5","6"]',
        3,
        6,
        None,
    ]


@pytest.mark.parametrize("old_generation", [False, True], ids=["new", "old"])
def test_scenarios_09_to_13_other_identities(pipeline, old_generation):
    """An old key tuple of early servers says nothing."""
    database = pipeline.server.database
    database.execute(
        f'ALTER DATABASE "{database.name}" SET yboutput.old_generation = {old_generation}'
    )
    for name in ("DEFAULT", "FULL", "NOTHING"):
        database.execute(f"CREATE TABLE {name}_t (LIKE t INCLUDING ALL, n int NOT NULL DEFAULT 7)")
        database.execute(f"SELECT yb_replica_identity('{name}_t', '{name}')")
    work = (
        "INSERT INTO {t} VALUES (1, 'a', 10)",
        "UPDATE {t} SET aura = 5 WHERE id = 1",
        "DELETE FROM {t} WHERE id = 1",
    )
    with pipeline.running() as run:
        for statement in work:
            for name in ("t", "default_t", "full_t"):
                database.execute(statement.format(t=name))
        database.execute("INSERT INTO nothing_t VALUES (1, 'a', 1)")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="publishes updates"):
            database.execute("UPDATE nothing_t SET aura = 2")
        database.execute("INSERT INTO nothing_t VALUES (2, 'b', 2)")
        run.until(lambda: len(pipeline.events("nothing_t")) == 2, "the last rows")
    assert pipeline.events("t")[1] == ("u", K1, None, {**UNSENT, "aura": cell(5)}), "scenario 13"
    _, updated, deleted = pipeline.events("default_t")
    assert updated == ("u", K1, None, {**row(1, "a", 5), "n": cell(7)}), "scenario 9"
    # the value is required by its schema: what has none is the type's neutral value, or the default
    neutral = deleted[2]["n"]["value"]
    assert deleted == ("d", K1, {**key_of(1), "n": cell(neutral)}, None), "scenario 10"
    assert neutral is not None
    before, after = ({**row(1, "a", aura), "n": cell(7)} for aura in (10, 5))
    assert pipeline.events("full_t")[1:] == [("u", K1, before, after), ("d", K1, after, None)]
    assert [event[0] for event in pipeline.events("nothing_t")] == ["c", "c"]


def test_scenario_14_pgoutput_gives_flat_rows(pipeline):
    pipeline.server.database.execute(
        "SELECT yb_replica_identity('t', 'DEFAULT'); ALTER TABLE t REPLICA IDENTITY DEFAULT"
    )
    events = streamed(
        pipeline,
        "INSERT INTO t VALUES (1, 'a', 10)",
        "UPDATE t SET aura = 99 WHERE id = 1",
        "DELETE FROM t WHERE id = 1",
        last={"id": 9999},
        **{"plugin.name": "pgoutput"},
    )
    assert events == [
        ("c", {"id": 1}, None, {"id": 1, "name": "a", "aura": 10}),
        ("u", {"id": 1}, None, {"id": 1, "name": "a", "aura": 99}),
        ("d", {"id": 1}, {"id": 1, "name": None, "aura": None}, None),
    ]


def test_scenarios_26_27_30_tables_that_change_and_join(pipeline):
    """The publication of the double follows at once; a real one may take 15 minutes."""
    database, name = pipeline.server.database, pipeline.settings["publication.name"]
    database.execute("CREATE TABLE t2 (id int PRIMARY KEY)")
    settings = {
        "table.include.list": "public.t,public.t2",
        "publication.autocreate.mode": "disabled",
    }
    database.execute(f'CREATE PUBLICATION "{name}" FOR TABLE t')
    events = streamed(
        pipeline,
        "INSERT INTO t VALUES (1, 'a', 1)",
        "ALTER TABLE t ADD COLUMN z int; INSERT INTO t VALUES (2, 'b', 2, 3)",
        "ALTER TABLE t DROP COLUMN name; INSERT INTO t VALUES (3, 4, 5)",
        f'ALTER PUBLICATION "{name}" ADD TABLE t2',
        "INSERT INTO t2 VALUES (1)",
        **settings,
    )
    assert events[0][3] == row(1, "a", 1)
    assert events[1][3] == {**row(2, "b", 2), "z": cell(3)}, "scenario 26"
    assert events[2][1:] == (K3, None, {"id": cell(3), "aura": cell(4), "z": cell(5)}), (
        "scenario 27"
    )
    assert pipeline.events("t2") == [("c", K1, None, {"id": cell(1)})], "scenario 30"


# --- transforms ----------------------------------------------------------------------------------------


PACKAGE = "io.debezium.connector.postgresql.transforms"


def transformed(pipeline: YugabytePipeline, kind: str) -> None:
    pipeline.tables = {"transforms": [{"type": kind}]}
    database = pipeline.server.database
    with pipeline.running() as transformed:
        database.execute("INSERT INTO t VALUES (1, 'a', 10)")
        database.execute("UPDATE t SET aura = 99")
        database.execute("UPDATE t SET aura = NULL")
        database.execute("DELETE FROM t")
        database.execute("INSERT INTO t VALUES (2, 'b', 2)")
        transformed.until(
            lambda: any(r["key"] == {"id": 2} for r in pipeline.records()), "the last row"
        )


def test_scenario_17_pgcompatible(pipeline):
    transformed(pipeline, f"{PACKAGE}.yugabytedb.PGCompatible")
    events = pipeline.events()
    assert [event[1] for event in events[:4]] == [{"id": 1}] * 4
    assert [event[3] for event in events[:3]] == [
        {"id": 1, "name": "a", "aura": 10},
        {"id": 1, "name": None, "aura": 99},
        {"id": 1, "name": None, "aura": None},
    ]
    assert events[3][2:] == ({"id": 1, "name": None, "aura": None}, None)
    assert pipeline.records()[4]["value"] is None


def test_scenario_18_new_record_state_leaves_out_what_was_not_sent(pipeline):
    transformed(pipeline, f"{PACKAGE}.YBExtractNewRecordState")
    assert [record["value"] for record in pipeline.records()[:4]] == [
        {"id": 1, "name": "a", "aura": 10},
        {"id": 1, "aura": 99},
        {"id": 1, "aura": None},
        None,
    ]
