"""The bytes of yboutput from a real server, compared with bytes worked out by hand, and what its decoder makes of them.

Verified against a protocol double built from published sources (tests/harness/servers/yboutput); no YugabyteDB server
was run. These tests hold the double to those sources. What decodes its bytes is tested on recordings of it
(tests/unit/decoders/test_pgoutput_session.py), which are compared here with what it sends today.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.harness import pgoutput_wire as wire
from tests.harness.captures import reported, yboutput
from tests.harness.servers.postgres import Database
from tests.harness.yboutput_recording import record, recorded
from tests.harness.yboutput_slot import Slot, identity, oid, spaced

from waltap.changes.decode import UNCHANGED

U = UNCHANGED
T1 = "CREATE TABLE t1 (a int PRIMARY KEY, b text, c bool)"


@pytest.fixture
def t1(yb_database) -> Database:
    yb_database.execute(T1)
    identity(yb_database, "t1", "CHANGE")
    yb_database.execute("INSERT INTO t1 VALUES (1, 'a', true), (2, 'b', true)")
    return yb_database


# --- scripts --------------------------------------------------------------------------------------

FOUR = (
    "INSERT INTO t1 VALUES (3, 'c', true); UPDATE t1 SET b = 'x' WHERE a = 1;"
    "DELETE FROM t1 WHERE a = 1; UPDATE t1 SET a = 9 WHERE a = 2",
)


@dataclass(frozen=True)
class Script:
    """Transactions on ``t1``, and what the slot sends of them: ``kinds`` the letters of all messages, ``rows`` those
    of I and U. What each identity sends: the recordings."""

    steps: Sequence[str]
    rows: Sequence[tuple[Any, ...]] | None = None
    kinds: str | None = None
    before: str = "SELECT 1"
    publish: str = "FOR ALL TABLES"
    options: dict[str, str] = field(default_factory=dict)


SCRIPTS: dict[str, Script] = {
    "set to what it was counts as not written": Script(["UPDATE t1 SET b = b, c = false WHERE a = 1"], [("U", ("1", U, "f"))]),
    "savepoints that rolled back": Script(
        ["BEGIN; SAVEPOINT s; UPDATE t1 SET b = 'no'; ROLLBACK TO s; UPDATE t1 SET b = 'yes' WHERE a = 1; COMMIT"],
        [("U", ("1", "yes", U))],
    ),
    # on YugabyteDB the slot's identity is frozen; here a reader sees that decoding follows it
    "another identity": Script(
        ["UPDATE t1 SET b = 'x' WHERE a = 1", "SELECT yb_replica_identity('t1', 'FULL')", "UPDATE t1 SET b = 'y' WHERE a = 1"],
        [("U", ("1", "x", U)), ("U", ("1", "y", "t"), ("1", "x", "t"), b"O")],
        "BRUCBRUC",
    ),
    "what is not sent leaves no empty transaction": Script(
        ["INSERT INTO keyless VALUES (1)", "UPDATE keyless SET a = 2", "SELECT pg_logical_emit_message(true, 'p', 'x')",
         "SELECT pg_logical_emit_message(false, 'p', 'x')", "CREATE TABLE later (a int)", "TRUNCATE t1"],
        kinds="",
        before="CREATE TABLE keyless (a int); ALTER TABLE keyless REPLICA IDENTITY FULL",
        options={"messages": "true"},
    ),
    "a hash range, taken out where the server would": Script(
        ["INSERT INTO t1 VALUES (3, 'c', true)"],
        kinds="BRIC",
        before="DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET yboutput.accept_hash_range = on', current_database()); END$$",
        options={"hash_range": "0,32768"},
    ),
    # of publications: a changed key counts as what it is sent as
    "of a table": Script(FOUR, kinds="BRIUDDIC", publish="FOR TABLE t1"),
    "of a schema": Script(FOUR, kinds="BRIUDDIC", publish="FOR TABLES IN SCHEMA public"),
    "inserts": Script(FOUR, kinds="BRIIC", publish="FOR ALL TABLES WITH (publish = 'insert')"),
    "updates": Script(FOUR, kinds="BRUC", publish="FOR ALL TABLES WITH (publish = 'update')"),
    "deletes": Script(FOUR, kinds="BRDDC", publish="FOR ALL TABLES WITH (publish = 'delete')"),
    "of another schema": Script(FOUR, kinds="", publish="FOR TABLES IN SCHEMA elsewhere", before="CREATE SCHEMA elsewhere"),
    "several publications are one union": Script(
        ["INSERT INTO t1 VALUES (3, 'c', true); DELETE FROM t1 WHERE a = 3", "UPDATE t1 SET b = 'x'"],
        kinds="BRIDC",
        before="CREATE PUBLICATION \"Q's\" FOR TABLE t1 WITH (publish = 'delete')",
        publish="FOR TABLE t1 WITH (publish = 'insert')",
        options={"publication_names": 'p, "Q\'s"'},
    ),
    "a table that joins the publication": Script(
        ["INSERT INTO t1 VALUES (5, 'e', true)", "ALTER PUBLICATION p ADD TABLE t1", "INSERT INTO t1 VALUES (6, 'f', true)",
         "ALTER PUBLICATION p DROP TABLE t1", "INSERT INTO t1 VALUES (7, 'g', true)"],
        [("I", ("6", "f", "t"))],
        before="CREATE TABLE t2 (a int PRIMARY KEY)",
        publish="FOR TABLE t2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_sent_as_published(t1, name):
    script = SCRIPTS[name]
    t1.execute(script.before)
    slot = Slot(t1, script.publish)
    for step in script.steps:
        t1.execute(step)
    if script.kinds is not None:
        assert slot.kinds(**script.options) == script.kinds
    if script.rows is not None:
        made = {"I": wire.insert, "U": wire.update}
        wanted = [made[letter](oid(t1, "t1"), *more) for letter, *more in script.rows]
        assert slot.payloads("IUD", **script.options) == wanted


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("UPDATE t1 SET b = 'x' WHERE a = 1", "55 00004000 4E 0003  74 00000001 31  74 00000001 78  75"),
        ("UPDATE t1 SET b = NULL, c = false WHERE a = 2", "55 00004000 4E 0003  74 00000001 32  6E  74 00000001 66"),
        ("DELETE FROM t1 WHERE a = 2", "44 00004000 4B 0003  74 00000001 32  6E  6E"),
    ],
    ids=["a column that was not written", "null is not unwritten", "delete"],
)  # fmt: skip
def test_rows_under_change_are_the_worked_bytes(t1, statement, expected):
    """The bytes are worked out from YugabyteDB's proto.c for a table with OID 16384."""
    slot = Slot(t1)
    t1.execute(statement)
    (row,) = slot.payloads("IUD")
    assert int.from_bytes(row[1:5], "big") == oid(t1, "t1")
    assert row[:1] + spaced("00004000") + row[5:] == spaced(expected)


LARGE = "SELECT string_agg(md5(g::text), '') FROM generate_series(1, 300) g"


@pytest.mark.parametrize("name", ["CHANGE", "DEFAULT", "FULL"])
def test_what_lies_in_toast_is_sent_or_left_out_as_anything_else(yb_database, name):
    """YugabyteDB has no TOAST: u never means it, and whole rows are whole, though by now the value is
    gone from the server. A row that moves to a new key brings it, too."""
    yb_database.execute(
        "CREATE TABLE big (k text, v text, n int, PRIMARY KEY (k));"
        "ALTER TABLE big ALTER k SET STORAGE EXTERNAL, ALTER v SET STORAGE EXTERNAL"
    )
    identity(yb_database, "big", name)
    yb_database.execute(f"INSERT INTO big SELECT repeat('k', 2500), ({LARGE}), 1")
    slot = Slot(yb_database)
    ((value,),) = yb_database.execute(LARGE)
    for statement in ("UPDATE big SET n = 2", "UPDATE big SET k = 'short'", "DELETE FROM big"):
        yb_database.execute(statement)
    yb_database.execute("VACUUM big")
    key, number = "k" * 2500, oid(yb_database, "big")
    new = (key, U, "2") if name == "CHANGE" else (key, value, "2")
    old = (key, value, "1") if name == "FULL" else None
    assert slot.payloads("UI") == [
        wire.update(number, new, old, b"O"),
        wire.insert(number, ("short", value, "2")),
    ]


# --- relations and types --------------------------------------------------------------------------


def test_recordings_are_what_the_double_sends_today(yb_database):
    """Apart from positions, transaction ids and times, and the OIDs of relations and types."""
    found = {recording.name: recording for recording in record(yb_database)}
    expected = recorded()
    assert found.keys() == expected.keys()
    for name, recording in expected.items():
        said = []
        for frames in (recording.frames, found[name].frames):
            shape = [(chr(payload[0]), len(payload)) for _, payload in frames]
            decoder = yboutput()
            said.append((shape, reported(decoder.feed(frames))))
        assert said[0] == said[1], name


# --- transactions ---------------------------------------------------------------------------------


def test_large_and_prepared_transactions_come_only_when_committed(t1):
    """streaming and two_phase are accepted, and have no effect; each protocol gives the same."""
    slot = Slot(t1)
    options = {"proto_version": "3", "streaming": "on", "two_phase": "on"}
    with t1.connect() as connection:
        connection.execute("SET logical_decoding_work_mem = '64kB'")
        connection.execute(
            "INSERT INTO t1 SELECT g, repeat('x', 100), true FROM generate_series(10, 3000) g"
        )
        connection.execute("BEGIN; INSERT INTO t1 VALUES (3001, 'p', true)")
        connection.execute("PREPARE TRANSACTION 'yboutput'")
        large = "BR" + "I" * 2991 + "C"
        assert slot.kinds(**options) == large
        connection.execute("COMMIT PREPARED 'yboutput'")
    assert slot.kinds(**options) == large + "BIC"
    assert {tuple(slot.payloads(proto_version=version)) for version in "123"} == {
        tuple(slot.payloads())
    }
