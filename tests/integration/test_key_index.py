"""Which columns are the key of a table, by either rule; Debezium's is recorded in the corpus key_index."""

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
from tests.harness.json_lines import records

from waltap.changes.events.plan import OldRowUnidentified
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.properties import PostgresProperties

SETUP = Path(__file__).parents[1] / "differential" / "corpora" / "key_index" / "setup.sql"

SOUND = {
    "b_included": ("a",),
    "e_partial": ("b",),
    "j_primary_include": ("b",),
    "k_primary_deferrable": ("a",),
    "l_hash_not_unique": ("b",),
}
"""Tables that have a key which holds for every row; all others of the corpus have none."""

LISTED = {
    "a_nullable": ("pk",),
    "b_included": ("a", "c"),
    "c_expression_first": ("a",),
    "e_partial": ("a",),
    "f_deferrable": ("a",),
    "g_by_name": ("c", "b"),
    "h_clustered": ("b",),
    "i_upper": ("a",),
    "j_primary_include": ("b",),
    "k_primary_deferrable": ("a",),
    "l_hash_not_unique": ("b",),
    "n_call": ("a",),
    "o_order": ("c", "a"),
    "q_mixed_first": ("a",),
}


@pytest.mark.parametrize(("rule", "keys"), [("sound", SOUND), ("debezium", LISTED)])
def test_a_table_without_primary_key_has_the_key_of_the_rule(database, rule, keys):
    database.psql(SETUP)
    properties = PostgresProperties.model_construct(key_index=rule)
    with database.connect(autocommit=True) as connection:
        tables = PostgresCatalogue(connection, properties).tables()
    (deferrable,) = [t for t in tables if t.relation.table == "k_primary_deferrable"]
    assert not deferrable.supports_updates, "PostgreSQL takes no deferrable key for an identity"
    assert not any(column.in_identity for column in deferrable.relation.columns)
    assert len(tables) > len(keys)
    found = {t.relation.table: t.relation.primary_key for t in tables if t.relation.primary_key}
    assert found == keys


OLD_ROWS = """
CREATE TABLE lacking (id int PRIMARY KEY, u text NOT NULL, v int);
CREATE UNIQUE INDEX lacking_u ON lacking (u);
ALTER TABLE lacking REPLICA IDENTITY USING INDEX lacking_u;
CREATE TABLE keyless (a int NOT NULL UNIQUE, z int NOT NULL UNIQUE, v int);
ALTER TABLE keyless REPLICA IDENTITY USING INDEX keyless_z_key;
CREATE TABLE wider (id int PRIMARY KEY, u text NOT NULL, UNIQUE (u, id));
ALTER TABLE wider REPLICA IDENTITY USING INDEX wider_u_id_key;
"""


@pytest.mark.parametrize(
    ("rule", "plugin"),
    [("sound", "pgoutput"), ("debezium", "pgoutput"), ("sound", "decoderbufs")],
)  # fmt: skip
def test_a_delete_has_a_key_that_its_row_had(database, pipeline, tmp_path, rule, plugin):
    """The index of a replica identity may lack the key: old rows have the index's columns alone."""
    database.psql(OLD_ROWS)
    database.execute("INSERT INTO lacking VALUES (7, 'a', 1), (8, 'b', 1)")
    out = tmp_path / "out"
    settings = {"sink.type": "jsonl", "sink.path": str(out), "topic.prefix": "x"}
    settings |= {"plugin.name": plugin, "waltap.key.index": rule}
    pipeline.settings |= settings
    pipeline.catch_up()
    pipeline.deliver(
        "INSERT INTO keyless VALUES (1, 2, 3); INSERT INTO wider VALUES (4, 'w');"
        "UPDATE lacking SET v = 2; UPDATE lacking SET u = 'c' WHERE id = 8; DELETE FROM lacking;"
        "DELETE FROM keyless; DELETE FROM wider"
    )
    found: dict[str, set[tuple[str, str]]] = {}
    for record in records(out):
        if record["value"] is not None:
            source, op = record["value"]["source"], record["value"]["op"]
            found.setdefault(source["table"], set()).add((op, json.dumps(record["key"])))
    sound = rule == "sound"
    a, b, c = [{"u": u} for u in "abc"] if sound else [{"id": 7}, {"id": 8}, {"id": 8}]
    assert ("r", json.dumps(a)) in found["lacking"]
    assert ("u", json.dumps(a)) in found["lacking"]
    gone = {key for op, key in found["lacking"] if op == "d"}
    if sound:
        assert gone == {json.dumps(each) for each in (a, b, c)}
        assert {key for _, key in found["keyless"]} == {'{"z": 2}'}
    else:
        assert '{"id": 0}' in gone
    assert {key for _, key in found["wider"]} == {'{"id": 4}'}


@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json", "decoderbufs"])
def test_a_delete_has_the_key_of_the_replica_identity_of_its_time(
    database, pipeline, tmp_path, plugin
):
    """The catalogue shows the identity of the primary key again when the deletes are decoded."""
    database.psql("CREATE TABLE t (id int PRIMARY KEY, u text NOT NULL UNIQUE, v int)")
    out = tmp_path / "out"
    pipeline.settings |= {"sink.type": "jsonl", "sink.path": str(out), "topic.prefix": "x"}
    pipeline.settings["plugin.name"] = plugin
    pipeline.catch_up()
    database.psql(
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'); DELETE FROM t WHERE id = 1;"
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_u_key; DELETE FROM t WHERE id = 2;"
        "UPDATE t SET v = 9; ALTER TABLE t REPLICA IDENTITY DEFAULT; DELETE FROM t"
    )
    pipeline.catch_up()
    found = [(r["key"], r["value"] and r["value"]["op"]) for r in records(out)]
    keys = [{"id": 1}, {"u": "b"}, {"id": 3}]
    assert [key for key, op in found if op == "d"] == keys
    assert [key for key, op in found if op is None] == keys


PARTED = """
CREATE TABLE t (id int PRIMARY KEY, u text NOT NULL) PARTITION BY RANGE (id);
CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100);
CREATE UNIQUE INDEX t1_u ON t1 (u);
ALTER TABLE t1 REPLICA IDENTITY USING INDEX t1_u;
"""


@pytest.mark.parametrize(
    ("change", "to"), [("DELETE FROM t", "jsonl"), ("UPDATE t SET u = 'b'", "sql")]
)
def test_an_old_row_of_a_partition_that_names_no_row_ends_the_run(pipeline, tmp_path, change, to):
    """The root's key is not in the partition's replica identity; the way out leads out."""
    database, out = pipeline.database, tmp_path / "out"
    database.psql(PARTED)
    pipeline.settings |= {"sink.type": to, "topic.prefix": "x", "publish.via.partition.root": True}
    sink = {"sink.url": f"sqlite:///{out}"} if to == "sql" else {"sink.path": str(out)}
    pipeline.settings |= sink
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO t VALUES (1, 'a'), (2, 'c')")
    database.execute(f"{change} WHERE id = 1")
    for _ in range(2):
        with pytest.raises(
            OldRowUnidentified, match=r"row of public\.t lacks id.*REPLICA IDENTITY"
        ):
            pipeline.catch_up()
    database.execute("ALTER TABLE t1 REPLICA IDENTITY DEFAULT")
    for words in (("slot", "drop"), ("offsets", "clear")):
        assert pipeline.command(*words, "--yes").returncode == 0
    out.unlink()
    pipeline.catch_up()
    pipeline.deliver(f"{change} WHERE id = 2" if "DELETE" in change else "DELETE FROM t")
    if to == "jsonl":
        gone = sorted(r["key"]["id"] for r in records(out) if r["value"] is None)
        assert gone == ([2] if "DELETE" in change else [1, 2])
    else:
        with contextlib.closing(sqlite3.connect(out)) as target:
            assert target.execute("SELECT * FROM t").fetchall() == []


def test_keys_that_old_rows_lack_are_no_keys(pipeline, tmp_path, caplog):
    """A delete had a key of stand-ins, such as 0, that no row has."""
    database, out = pipeline.database, tmp_path / "out"
    database.psql("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)")
    pipeline.settings |= {"sink.type": "jsonl", "sink.path": str(out), "topic.prefix": "x"}
    pipeline.settings["message.key.columns"] = "public.t:v"
    pipeline.catch_up()
    (warning,) = {r.getMessage() for r in caplog.records if "message.key.columns" in r.getMessage()}
    assert "public.t: its old rows lack v of message.key.columns: deletes have no key" in warning
    pipeline.deliver("INSERT INTO t VALUES (1, 10); UPDATE t SET id = 2; DELETE FROM t")
    remedy = warning[warning.index("ALTER TABLE") :]
    database.psql(remedy)
    pipeline.deliver("INSERT INTO t VALUES (3, 30); UPDATE t SET v = 31; DELETE FROM t")
    assert [(r["key"], r["value"] and r["value"]["op"]) for r in records(out)] == [
        ({"v": 10}, "c"), ({"v": 10}, "u"), (None, "d"),
        ({"v": 30}, "c"), ({"v": 30}, "d"), ({"v": 30}, None), ({"v": 31}, "c"),
        ({"v": 31}, "d"), ({"v": 31}, None),
    ]  # fmt: skip
    assert not pipeline.doctor().get("replica identity")


UNSENT = {
    "generated": ("k text GENERATED ALWAYS AS (lower(v)) STORED", "t"),
    "not listed": ("k text DEFAULT gen_random_uuid()", "t (a, v) WITH (publish = insert)"),
}


@pytest.mark.parametrize("why", UNSENT)
def test_a_key_of_which_a_column_is_not_sent_merges_no_rows(pipeline, tmp_path, why):
    database, out = pipeline.database, tmp_path / "out"
    column, published = UNSENT[why]
    database.psql(f"CREATE TABLE t (a int, v text, {column}, PRIMARY KEY (a, k))")
    database.execute(f"CREATE PUBLICATION {pipeline.slot} FOR TABLE {published}")
    pipeline.settings |= {"sink.type": "sql", "sink.url": f"sqlite:///{out}"}
    pipeline.settings["publication.autocreate.mode"] = "disabled"
    pipeline.deliver("INSERT INTO t (a, v) VALUES (1, 'v'), (1, 'w')")
    pipeline.deliver("INSERT INTO t (a, v) VALUES (1, 'x'), (1, 'y')")
    with contextlib.closing(sqlite3.connect(out)) as target:
        assert sorted(target.execute("SELECT a, v FROM t")) == [(1, v) for v in "vwxy"]
    if why == "generated":
        database.execute("DELETE FROM t WHERE v = 'x'")
        with pytest.raises(OldRowUnidentified, match=r"lacks v.*REPLICA IDENTITY"):
            pipeline.catch_up()
