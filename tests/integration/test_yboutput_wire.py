"""The bytes of yboutput from a real server, compared with bytes worked out by hand.

Verified against a protocol double built from published sources (tests/harness/servers/yboutput); no
YugabyteDB server was run. These tests hold the double to those sources; what decodes its bytes is
tested in test_yboutput_decoded.py.
"""

from typing import Any

import psycopg
import pytest

from tests.harness import pgoutput_wire as wire
from tests.harness.yboutput_slot import Slot, current_lsn, identity, oid, spaced
from tests.harness.servers.postgres import Database
from waltap.decode import UNCHANGED

U = UNCHANGED
Row = Any
T1 = "CREATE TABLE t1 (a int PRIMARY KEY, b text, c bool)"
TEXT, INT4, BOOL = 25, 23, 16
GENERATIONS = pytest.mark.parametrize("old_generation", [False, True], ids=["new", "old"])


@pytest.fixture
def t1(yb_database: Database) -> Database:
    yb_database.execute(T1)
    identity(yb_database, "t1", "CHANGE")
    yb_database.execute("INSERT INTO t1 VALUES (1, 'a', true), (2, 'b', true)")
    return yb_database


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        pytest.param(
            "UPDATE t1 SET b = 'x' WHERE a = 1",
            "55 00004000 4E 0003  74 00000001 31  74 00000001 78  75",
            id="a-column-that-was-not-written",
        ),
        pytest.param(
            "UPDATE t1 SET b = NULL, c = false WHERE a = 2",
            "55 00004000 4E 0003  74 00000001 32  6E  74 00000001 66",
            id="null-is-not-unwritten",
        ),
        pytest.param(
            "DELETE FROM t1 WHERE a = 2",
            "44 00004000 4B 0003  74 00000001 32  6E  6E",
            id="delete",
        ),
    ],
)
def test_rows_under_change_are_the_worked_bytes(
    t1: Database, statement: str, expected: str
) -> None:
    """The bytes are worked out from YugabyteDB's proto.c for a table with OID 16384."""
    slot = Slot(t1)
    t1.execute(statement)
    (row,) = slot.payloads("IUD")
    assert int.from_bytes(row[1:5], "big") == oid(t1, "t1")
    assert row[:1] + spaced("00004000") + row[5:] == spaced(expected)


ROW, CHANGED = ("1", "a", "t"), ("1", "x", "t")
ALL_UNSENT, ALL_NULL = (U, U, U), (None, None, None)


@pytest.mark.parametrize(
    ("name", "old_generation", "new", "old", "mark", "deleted"),
    [
        pytest.param("CHANGE", False, ("1", "x", U), None, b"", ("1", None, None), id="change"),
        pytest.param(
            "CHANGE", True, ("1", "x", U), ALL_UNSENT, b"K", ("1", None, None), id="change-old"
        ),
        pytest.param("DEFAULT", False, CHANGED, None, b"", ("1", None, None), id="default"),
        pytest.param("DEFAULT", True, CHANGED, ALL_NULL, b"K", ("1", None, None), id="default-old"),
        pytest.param("FULL", False, CHANGED, ROW, b"O", CHANGED, id="full"),
        pytest.param("FULL", True, CHANGED, ROW, b"O", CHANGED, id="full-old"),
    ],
)
def test_each_identity_sends_its_own_images_in_both_generations(
    t1: Database, name: str, old_generation: bool, new: Row, old: Row, mark: bytes, deleted: Row
) -> None:
    identity(t1, "t1", name)
    slot = Slot(t1)
    t1.execute("INSERT INTO t1 VALUES (3, NULL, NULL)")
    t1.execute("UPDATE t1 SET b = 'x' WHERE a = 1")
    t1.execute("DELETE FROM t1 WHERE a = 1")
    number = oid(t1, "t1")
    assert slot.payloads("IUD", old_generation=old_generation) == [
        wire.insert(number, ("3", None, None)),
        wire.update(number, new, old, mark),
        wire.delete(number, deleted, b"O" if name == "FULL" else b"K"),
    ]


def test_nothing_lets_inserts_through_and_the_server_refuses_the_rest(t1: Database) -> None:
    identity(t1, "t1", "NOTHING")
    slot = Slot(t1)
    t1.execute("INSERT INTO t1 VALUES (3, 'c', false)")
    refusal = (
        'cannot update table "t1" because it does not have a replica identity and publishes updates'
    )
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=refusal):
        t1.execute("UPDATE t1 SET b = 'x'")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="publishes deletes"):
        t1.execute("DELETE FROM t1")
    t1.execute("INSERT INTO t1 VALUES (4, 'd', false)")
    assert slot.kinds() == "BRICBIC"


@GENERATIONS
@pytest.mark.parametrize("name", ["CHANGE", "DEFAULT", "FULL"])
def test_a_changed_key_is_a_delete_and_an_insert_of_the_complete_row(
    t1: Database, name: str, old_generation: bool
) -> None:
    identity(t1, "t1", name)
    slot = Slot(t1)
    t1.execute("UPDATE t1 SET a = 7 WHERE a = 1")
    number = oid(t1, "t1")
    assert slot.kinds(old_generation=old_generation) == "BRDIC"
    full = name == "FULL"
    assert slot.payloads("DI", old_generation=old_generation) == [
        wire.delete(number, ROW if full else ("1", None, None), b"O" if full else b"K"),
        wire.insert(number, ("7", "a", "t")),
    ]


def test_a_value_set_to_what_it_was_counts_as_not_written(t1: Database) -> None:
    slot = Slot(t1)
    t1.execute("UPDATE t1 SET b = b, c = false WHERE a = 1")
    assert slot.payloads("U") == [wire.update(oid(t1, "t1"), ("1", U, "f"))]


LARGE = "SELECT string_agg(md5(g::text), '') FROM generate_series(1, 300) g"


@pytest.fixture
def large(yb_database: Database) -> Database:
    """Return a database with ``big (k text key, v text, n int)``, both texts out of line."""
    yb_database.execute("CREATE TABLE big (k text, v text, n int, PRIMARY KEY (k))")
    yb_database.execute(
        "ALTER TABLE big ALTER k SET STORAGE EXTERNAL, ALTER v SET STORAGE EXTERNAL"
    )
    identity(yb_database, "big", "CHANGE")
    yb_database.execute(f"INSERT INTO big SELECT repeat('k', 2500), ({LARGE}), 1")
    return yb_database


@pytest.mark.parametrize("name", ["CHANGE", "DEFAULT", "FULL"])
def test_what_lies_in_toast_is_sent_or_left_out_as_anything_else(
    large: Database, name: str
) -> None:
    """YugabyteDB has no TOAST: u never means it, and whole rows are whole, though by now the value is
    gone from the server.
    """
    identity(large, "big", name)
    slot = Slot(large)
    ((value,),) = large.execute(LARGE)
    key = "k" * 2500
    large.execute("UPDATE big SET n = 2")
    large.execute("DELETE FROM big")
    large.execute("VACUUM big")
    new = (key, U, "2") if name == "CHANGE" else (key, value, "2")
    old = (key, value, "1") if name == "FULL" else None
    assert slot.payloads("U") == [wire.update(oid(large, "big"), new, old, b"O")]


def test_a_row_that_moves_to_a_new_key_brings_what_lay_in_toast(large: Database) -> None:
    slot = Slot(large)
    ((value,),) = large.execute(LARGE)
    large.execute("UPDATE big SET k = 'short'")
    large.execute("DELETE FROM big")
    large.execute("VACUUM big")
    assert slot.payloads("I") == [wire.insert(oid(large, "big"), ("short", value, "1"))]


def test_values_come_in_send_format_when_asked_for(t1: Database) -> None:
    slot = Slot(t1)
    t1.execute("UPDATE t1 SET c = NULL WHERE a = 1; UPDATE t1 SET b = 'é' WHERE a = 2")
    number = oid(t1, "t1")
    assert slot.payloads("U", binary="true") == [
        wire.update(number, (b"\0\0\0\1", U, None)),
        wire.update(number, (b"\0\0\0\2", "é".encode(), U)),
    ]


# --- relations and types --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "letter", "flags"),
    [
        pytest.param("CHANGE", "c", (1, 0, 0), id="change"),
        pytest.param("DEFAULT", "d", (1, 0, 0), id="default"),
        pytest.param("FULL", "f", (1, 1, 1), id="full"),
        pytest.param("NOTHING", "n", (0, 0, 0), id="nothing"),
    ],
)
def test_a_relation_tells_its_identity_and_the_columns_of_it(
    t1: Database, name: str, letter: str, flags: tuple[int, int, int]
) -> None:
    identity(t1, "t1", name)
    slot = Slot(t1)
    t1.execute("INSERT INTO t1 VALUES (3, 'c', true)")
    types = (INT4, TEXT, BOOL)
    columns = [(n, t, -1, bool(f)) for n, t, f in zip("abc", types, flags, strict=True)]
    expected = wire.relation(oid(t1, "t1"), "public", "t1", columns, letter)
    assert slot.payloads("R") == [expected]


def test_a_table_without_a_word_about_its_identity_has_change(yb_database: Database) -> None:
    yb_database.execute(f"{T1}; COMMENT ON TABLE t1 IS 'the yb: is not at the start'")
    slot = Slot(yb_database)
    yb_database.execute("INSERT INTO t1 VALUES (1, 'a', true)")
    (relation,) = slot.payloads("R")
    assert relation[len(b"R....public\0t1\0") :][:1] == b"c"


def test_dropped_and_generated_columns_are_in_no_message(yb_database: Database) -> None:
    yb_database.execute(
        "CREATE TABLE t (a int PRIMARY KEY, gone int, twice int GENERATED ALWAYS AS (a * 2) STORED,"
        " b text); ALTER TABLE t DROP COLUMN gone"
    )
    identity(yb_database, "t", "FULL")
    slot = Slot(yb_database)
    yb_database.execute("INSERT INTO t VALUES (1, DEFAULT, 'x'); UPDATE t SET b = 'y'")
    number = oid(yb_database, "t")
    columns = [("a", INT4, -1, True), ("b", TEXT, -1, True)]
    assert slot.payloads("RIU") == [
        wire.relation(number, "public", "t", columns, "f"),
        wire.insert(number, ("1", "x")),
        wire.update(number, ("1", "y"), ("1", "x"), b"O"),
    ]


def test_a_relation_comes_once_and_again_after_it_changed(t1: Database) -> None:
    t1.execute("CREATE TABLE t2 (a int PRIMARY KEY)")
    slot = Slot(t1)
    t1.execute("INSERT INTO t1 VALUES (3, 'c', true); INSERT INTO t2 VALUES (1)")
    t1.execute("ALTER TABLE t1 ADD COLUMN z int")
    t1.execute("INSERT INTO t2 VALUES (2)")
    t1.execute("INSERT INTO t1 VALUES (4, 'd', true, 9); INSERT INTO t2 VALUES (3)")
    t1.execute("ALTER TABLE t1 DROP COLUMN b")
    t1.execute("INSERT INTO t1 VALUES (5, true, 8)")
    assert slot.kinds() == "BRIRIC" + "BIC" + "BRIIC" + "BRIC"
    number = oid(t1, "t1")
    rows = [row for row in slot.payloads("I") if row[1:5] == number.to_bytes(4, "big")]
    assert rows == [
        wire.insert(number, ("3", "c", "t")),
        wire.insert(number, ("4", "d", "t", "9")),
        wire.insert(number, ("5", "t", "8")),
    ]


def test_an_identity_changed_by_the_function_is_followed(t1: Database) -> None:
    """On YugabyteDB the slot's identity is frozen; here a reader sees that decoding follows it."""
    slot = Slot(t1)
    t1.execute("UPDATE t1 SET b = 'x' WHERE a = 1")
    identity(t1, "t1", "FULL")
    t1.execute("UPDATE t1 SET b = 'y' WHERE a = 1")
    number = oid(t1, "t1")
    assert slot.kinds() == "BRUCBRUC"
    assert slot.payloads("U") == [
        wire.update(number, ("1", "x", U)),
        wire.update(number, ("1", "y", "t"), ("1", "x", "t"), b"O"),
    ]


def test_types_of_users_come_before_the_relation_and_composites_are_not_sent(
    yb_database: Database,
) -> None:
    yb_database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (x int, y int);"
        "CREATE TABLE t (a int PRIMARY KEY, m mood, p pair, n text)"
    )
    identity(yb_database, "t", "CHANGE")
    slot = Slot(yb_database)
    yb_database.execute("INSERT INTO t VALUES (1, 'ok', (1, 2), 'a')")
    yb_database.execute("UPDATE t SET p = (3, 4)")
    yb_database.execute("UPDATE t SET n = 'b'")
    number = oid(yb_database, "t")
    ((mood, pair),) = yb_database.execute("SELECT 'mood'::regtype::oid, 'pair'::regtype::oid")
    assert slot.kinds() == "BYYRICBUCBUC"
    assert slot.payloads("YIU") == [
        wire.type_(mood, "public", "mood"),
        wire.type_(pair, "public", "pair"),
        wire.insert(number, ("1", "ok", None, "a")),
        wire.update(number, ("1", U, None, U)),
        wire.update(number, ("1", U, U, "b")),
    ]


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction_comes_between_begin_and_commit_that_agree(t1: Database) -> None:
    slot = Slot(t1)
    t1.execute("INSERT INTO t1 VALUES (3, 'c', true)")
    end = current_lsn(t1)
    begin, commit = slot.payloads("BC")
    final, xid = int.from_bytes(begin[1:9], "big"), int.from_bytes(begin[17:21], "big")
    time = int.from_bytes(begin[9:17], "big")
    assert begin == wire.begin(final, time, xid)
    end_lsn = int.from_bytes(commit[10:18], "big")
    assert commit == wire.commit(final, end_lsn, time)
    assert final < end_lsn <= end


def test_what_is_not_sent_leaves_no_empty_transaction(t1: Database) -> None:
    """TRUNCATE, logical messages and tables without primary key are not in the stream at all."""
    t1.execute("CREATE TABLE keyless (a int); ALTER TABLE keyless REPLICA IDENTITY FULL")
    slot = Slot(t1)
    t1.execute("INSERT INTO keyless VALUES (1)")
    t1.execute("UPDATE keyless SET a = 2")
    t1.execute("SELECT pg_logical_emit_message(true, 'p', 'x')")
    t1.execute("SELECT pg_logical_emit_message(false, 'p', 'x')")
    t1.execute("CREATE TABLE later (a int)")
    t1.execute("TRUNCATE t1")
    assert slot.payloads(messages="true") == []


def test_a_transaction_that_changes_a_row_thrice_tells_all_three(t1: Database) -> None:
    slot = Slot(t1)
    t1.execute(
        "INSERT INTO t1 VALUES (4, 'd', true); UPDATE t1 SET c = false WHERE a = 4;"
        "DELETE FROM t1 WHERE a = 4"
    )
    number = oid(t1, "t1")
    assert slot.kinds() == "BRIUDC"
    assert slot.payloads("IUD") == [
        wire.insert(number, ("4", "d", "t")),
        wire.update(number, ("4", U, "f")),
        wire.delete(number, ("4", None, None)),
    ]


def test_savepoints_that_rolled_back_are_absent(t1: Database) -> None:
    slot = Slot(t1)
    with t1.connect(autocommit=False) as connection:
        connection.execute("SAVEPOINT s; UPDATE t1 SET b = 'no'; ROLLBACK TO s")
        connection.execute("UPDATE t1 SET b = 'yes' WHERE a = 1")
    assert slot.payloads("U") == [wire.update(oid(t1, "t1"), ("1", "yes", U))]


def test_large_and_prepared_transactions_come_only_when_committed(t1: Database) -> None:
    """streaming and two_phase are accepted, and have no effect."""
    slot = Slot(t1)
    options = {"proto_version": "3", "streaming": "on", "two_phase": "on"}
    with t1.connect() as connection:
        connection.execute("SET logical_decoding_work_mem = '64kB'")
        connection.execute(
            "INSERT INTO t1 SELECT g, repeat('x', 100), true FROM generate_series(10, 3000) g"
        )
        connection.execute("BEGIN; INSERT INTO t1 VALUES (3001, 'p', true)")
        connection.execute("PREPARE TRANSACTION 'yboutput'")
        assert slot.kinds(**options) == "BR" + "I" * 2991 + "C"
        connection.execute("COMMIT PREPARED 'yboutput'")
    assert slot.kinds(**options) == "BR" + "I" * 2991 + "C" + "BIC"


def test_replication_brings_the_same_payloads_with_their_positions(t1: Database) -> None:
    """Relation is a write that is not the last of its change: its position is 0."""
    slot = Slot(t1)
    t1.execute("UPDATE t1 SET b = 'x' WHERE a = 1")
    t1.execute("UPDATE t1 SET a = 9 WHERE a = 2")
    expected = slot.payloads()
    found = slot.streamed(commits=2)
    assert [payload for *_, payload in found] == expected
    assert "".join(chr(payload[0]) for payload in expected) == "BRUCBDIC"
    assert [start for start, _, payload in found if payload[:1] == b"R"] == [0]
    rest = [start for start, _, payload in found if payload[:1] != b"R"]
    assert rest == sorted(rest)
    assert rest[0] > 0
    assert all(start == end for start, end, _ in found)


# --- publications ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("publish", "kinds"),
    [
        pytest.param("FOR TABLE t1", "BRIUDDIC", id="table"),
        pytest.param("FOR TABLES IN SCHEMA public", "BRIUDDIC", id="schema"),
        pytest.param("FOR ALL TABLES WITH (publish = 'insert')", "BRIIC", id="inserts"),
        pytest.param("FOR ALL TABLES WITH (publish = 'update')", "BRUC", id="updates"),
        pytest.param("FOR ALL TABLES WITH (publish = 'delete')", "BRDDC", id="deletes"),
        pytest.param("FOR TABLES IN SCHEMA elsewhere", "", id="nothing"),
    ],
)
def test_publications_choose_tables_and_operations(t1: Database, publish: str, kinds: str) -> None:
    """A changed key counts as what it is sent as: a delete and an insert."""
    t1.execute("CREATE SCHEMA elsewhere")
    slot = Slot(t1, publish)
    t1.execute(
        "INSERT INTO t1 VALUES (3, 'c', true); UPDATE t1 SET b = 'x' WHERE a = 1;"
        "DELETE FROM t1 WHERE a = 1; UPDATE t1 SET a = 9 WHERE a = 2"
    )
    assert slot.kinds() == kinds


def test_several_publications_are_one_union(t1: Database) -> None:
    slot = Slot(t1, "FOR TABLE t1 WITH (publish = 'insert')")
    t1.execute("CREATE PUBLICATION \"Q's\" FOR TABLE t1 WITH (publish = 'delete')")
    t1.execute("INSERT INTO t1 VALUES (3, 'c', true); DELETE FROM t1 WHERE a = 3")
    t1.execute("UPDATE t1 SET b = 'x'")
    assert slot.kinds(publication_names='p, "Q\'s"') == "BRIDC"


def test_a_table_that_joins_the_publication_is_sent_from_then_on(t1: Database) -> None:
    t1.execute("CREATE TABLE t2 (a int PRIMARY KEY)")
    slot = Slot(t1, "FOR TABLE t1")
    t1.execute("INSERT INTO t2 VALUES (1)")
    t1.execute("ALTER PUBLICATION p ADD TABLE t2")
    t1.execute("INSERT INTO t2 VALUES (2)")
    t1.execute("ALTER PUBLICATION p DROP TABLE t2")
    t1.execute("INSERT INTO t2 VALUES (3)")
    assert slot.payloads("I") == [wire.insert(oid(t1, "t2"), ("2",))]


def test_partitions_are_sent_under_their_own_names(yb_database: Database) -> None:
    yb_database.execute(
        "CREATE TABLE whole (a int PRIMARY KEY) PARTITION BY RANGE (a);"
        "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (9)"
    )
    slot = Slot(yb_database, "FOR TABLE whole")
    yb_database.execute("INSERT INTO whole VALUES (1)")
    number = oid(yb_database, "part")
    assert slot.payloads("RI") == [
        wire.relation(number, "public", "part", [("a", INT4, -1, True)], "c"),
        wire.insert(number, ("1",)),
    ]


def test_a_publication_that_is_not_there_is_an_error_at_the_first_change(t1: Database) -> None:
    slot = Slot(t1)
    assert slot.payloads(publication_names="missing") == []
    t1.execute("INSERT INTO t1 VALUES (3, 'c', true)")
    with pytest.raises(
        psycopg.errors.UndefinedObject, match='publication "missing" does not exist'
    ):
        slot.payloads(publication_names="missing")


@pytest.mark.parametrize(
    ("publish", "what"),
    [
        pytest.param("FOR TABLE t1 WHERE (a > 1)", "row filters", id="row-filter"),
        pytest.param("FOR TABLE t1 (a, b)", "column lists", id="column-list"),
    ],
)
def test_what_the_double_cannot_do_is_refused_and_never_wrong(
    t1: Database, publish: str, what: str
) -> None:
    slot = Slot(t1, publish)
    t1.execute("INSERT INTO t1 VALUES (3, 'c', true)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=what):
        slot.payloads()


def test_publishing_by_the_root_is_refused(yb_database: Database) -> None:
    yb_database.execute(
        "CREATE TABLE whole (a int PRIMARY KEY) PARTITION BY RANGE (a);"
        "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (9)"
    )
    slot = Slot(yb_database, "FOR TABLE whole WITH (publish_via_partition_root)")
    yb_database.execute("INSERT INTO whole VALUES (1)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="publish_via_partition_root"):
        slot.payloads()


def test_a_table_whose_old_rows_are_not_in_the_wal_is_refused(yb_database: Database) -> None:
    """Without REPLICA IDENTITY FULL the double cannot know what an update wrote."""
    yb_database.execute(T1)
    slot = Slot(yb_database)
    yb_database.execute("INSERT INTO t1 VALUES (1, 'a', true); UPDATE t1 SET b = 'x'")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="yb_replica_identity"):
        slot.payloads()


def test_a_comment_with_an_unknown_identity_is_refused(t1: Database) -> None:
    slot = Slot(t1)
    t1.execute("COMMENT ON TABLE t1 IS 'yb:SOMETHING'; INSERT INTO t1 VALUES (3, 'c', true)")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="names no replica identity"):
        slot.payloads()
    with pytest.raises(psycopg.errors.RaiseException, match="none of CHANGE, DEFAULT"):
        identity(t1, "t1", "INDEX")


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sqlstate", "text"),
    [
        pytest.param(
            {"origin": "any"}, "XX000", "unrecognized pgoutput option: origin", id="unknown"
        ),
        pytest.param(
            {"hash_range": "0,32768"},
            "XX000",
            "unrecognized pgoutput option: hash_range",
            id="hash-range",
        ),
        pytest.param(
            {"proto_version": "4"},
            "0A000",
            "client sent proto_version=4 but we only support protocol 3 or lower",
            id="protocol-too-new",
        ),
        pytest.param(
            {"proto_version": "0"},
            "0A000",
            "client sent proto_version=0 but we only support protocol 1 or higher",
            id="protocol-too-old",
        ),
        pytest.param({"proto_version": "1x"}, "22023", "invalid proto_version", id="no-number"),
        pytest.param({"proto_version": ""}, "22023", "invalid proto_version", id="empty-number"),
        pytest.param(
            {"publication_names": ""},
            "22023",
            "publication_names parameter missing",
            id="no-publication",
        ),
        pytest.param(
            {"publication_names": "a,,b"},
            "42602",
            "invalid publication_names syntax",
            id="publication-names",
        ),
        pytest.param(
            {"streaming": "on"},
            "0A000",
            "requested proto_version=1 does not support streaming, need 2 or higher",
            id="streaming",
        ),
        pytest.param(
            {"two_phase": "on"},
            "0A000",
            "requested proto_version=1 does not support two-phase commit, need 3 or higher",
            id="two-phase",
        ),
        pytest.param({"binary": "maybe"}, "42601", "binary requires a Boolean value", id="no-bool"),
    ],
)
def test_options_are_refused_with_the_texts_of_yugabytedb(
    t1: Database, options: dict[str, Any], sqlstate: str, text: str
) -> None:
    slot = Slot(t1)
    with pytest.raises(psycopg.Error) as refused:
        slot.frames(**options)
    assert refused.value.sqlstate == sqlstate
    assert refused.value.diag.message_primary == text


def test_an_option_given_twice_is_refused(t1: Database) -> None:
    slot = Slot(t1)
    with pytest.raises(psycopg.errors.SyntaxError, match="conflicting or redundant options"):
        t1.execute(
            "SELECT pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'binary', 'on', 'binary',"
            " 'on')",
            slot.name,
        )


def test_a_hash_range_is_taken_out_where_the_server_would(t1: Database) -> None:
    slot = Slot(t1)
    t1.execute(
        f'ALTER DATABASE "{t1.name}" SET yboutput.accept_hash_range = on;'
        "INSERT INTO t1 VALUES (3, 'c', true)"
    )
    assert slot.kinds(hash_range="0,32768") == "BRIC"


def test_the_old_generation_can_be_chosen_for_a_whole_database(t1: Database) -> None:
    """So that a walsender that `waltap run` opens sends it, too."""
    slot = Slot(t1)
    t1.execute(f'ALTER DATABASE "{t1.name}" SET yboutput.old_generation = on')
    t1.execute("UPDATE t1 SET b = 'x' WHERE a = 1")
    found = [payload for *_, payload in slot.streamed(commits=1) if payload[:1] == b"U"]
    assert found == [wire.update(oid(t1, "t1"), ("1", "x", U), ALL_UNSENT)]
