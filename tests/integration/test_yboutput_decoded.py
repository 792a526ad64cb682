"""yboutput's decoder and the identity CHANGE on bytes of a real server.

Verified against a protocol double built from published sources (tests/harness/servers/yboutput); no
YugabyteDB server was run.
"""

from typing import Any

import pytest

from tests.harness.captures import context, told
from tests.harness.yboutput_recording import record, recorded
from tests.harness.yboutput_slot import Slot, identity
from tests.harness.servers.postgres import Database
from waltap.decode import ABSENT, UNCHANGED, Begin, Commit, Delete, Message, RelationSeen, Update
from waltap.decode.replica_identity import RowImages
from waltap.host import Host

A, U = ABSENT, UNCHANGED
C = ("C",)
HOST = Host()
GENERATIONS = pytest.mark.parametrize("old_generation", [False, True], ids=["new", "old"])
T = "public.t"


def decode(slot: Slot, *, old_generation: bool = False, **options: Any) -> list[Message]:
    """Decode what ``slot`` holds, asking the server for what the decoder wants to be asked for."""
    decoder = HOST.decoders["yboutput"].factory(context(**options))
    return decoder.feed(slot.frames(old_generation=old_generation, **decoder.start_options()))


def images(message: Update | Delete) -> RowImages | None:
    """Return what the replica identity that the host knows makes of an update or delete."""
    spec = next(
        spec
        for spec in HOST.replica_identities.values()
        if spec.letter == message.relation.identity
    )
    reader = spec.factory(message.relation)
    return reader.update(message) if isinstance(message, Update) else reader.delete(message)


@pytest.fixture
def t(yb_database: Database) -> Database:
    """Return a database with the acceptance table ``t``, identity CHANGE, and row 1."""
    yb_database.execute("CREATE TABLE t (id int PRIMARY KEY, name text, aura int)")
    identity(yb_database, "t", "CHANGE")
    yb_database.execute("INSERT INTO t VALUES (1, 'a', 10)")
    return yb_database


STATEMENTS = (
    "INSERT INTO t VALUES (2, NULL, NULL)",
    "UPDATE t SET aura = 99 WHERE id = 1",
    "UPDATE t SET aura = NULL WHERE id = 1",
    "UPDATE t SET name = 'b', aura = 10 WHERE id = 1",
    "UPDATE t SET id = 3 WHERE id = 2",
    "DELETE FROM t WHERE id = 1",
)
INSERTED, MOVED = ("I", T, ("2", None, None)), ("I", T, ("3", None, None))
EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "CHANGE": [
        INSERTED,
        C,
        ("U", T, ("1", U, "99"), ()),
        C,
        ("U", T, ("1", U, None), ()),
        C,
        ("U", T, ("1", "b", "10"), ()),
        C,
        ("D", T, ("2", A, A)),
        MOVED,
        C,
        ("D", T, ("1", A, A)),
        C,
    ],
    "DEFAULT": [
        INSERTED,
        C,
        ("U", T, ("1", "a", "99"), ()),
        C,
        ("U", T, ("1", "a", None), ()),
        C,
        ("U", T, ("1", "b", "10"), ()),
        C,
        ("D", T, ("2", A, A)),
        MOVED,
        C,
        ("D", T, ("1", A, A)),
        C,
    ],
    "FULL": [
        INSERTED,
        C,
        ("U", T, ("1", "a", "99"), ("1", "a", "10")),
        C,
        ("U", T, ("1", "a", None), ("1", "a", "99")),
        C,
        ("U", T, ("1", "b", "10"), ("1", "a", None)),
        C,
        ("D", T, ("2", None, None)),
        MOVED,
        C,
        ("D", T, ("1", "b", "10")),
        C,
    ],
}


@GENERATIONS
@pytest.mark.parametrize("name", EXPECTED)
def test_both_generations_decode_to_the_same_messages(
    t: Database, name: str, old_generation: bool
) -> None:
    """An update's key-only old tuple says nothing, whether it is all u or all n."""
    identity(t, "t", name)
    slot = Slot(t)
    for statement in STATEMENTS:
        t.execute(statement)
    assert told(decode(slot, old_generation=old_generation)) == EXPECTED[name]


@pytest.mark.parametrize(
    ("name", "letter", "keys"),
    [("CHANGE", "c", 1), ("DEFAULT", "d", 1), ("FULL", "f", 3), ("NOTHING", "n", 0)],
)
def test_the_identity_letter_and_the_key_are_in_the_relation(
    t: Database, name: str, letter: str, keys: int
) -> None:
    identity(t, "t", name)
    slot = Slot(t)
    t.execute("INSERT INTO t VALUES (5, 'e', 1)")
    (seen,) = (m for m in decode(slot) if isinstance(m, RelationSeen))
    assert seen.relation.identity == letter
    assert [c.in_identity for c in seen.relation.columns] == [n < keys for n in range(3)]
    assert letter in {spec.letter for spec in HOST.replica_identities.values()}


@GENERATIONS
@pytest.mark.parametrize(
    ("name", "updated", "deleted"),
    [
        pytest.param(
            "CHANGE",
            RowImages(None, ("1", U, "99"), None),
            RowImages(("1", A, A), None, ("1", A, A)),
            id="change",
        ),
        pytest.param(
            "DEFAULT",
            RowImages(None, ("1", "a", "99"), None),
            RowImages(("1", A, A), None, ("1", A, A)),
            id="default",
        ),
        pytest.param(
            "FULL",
            RowImages(("1", "a", "10"), ("1", "a", "99"), ("1", "a", "10")),
            RowImages(("1", "a", "99"), None, ("1", "a", "99")),
            id="full",
        ),
    ],
)
def test_identities_give_the_images_that_yugabytedb_can_give(
    t: Database, name: str, updated: RowImages, deleted: RowImages, old_generation: bool
) -> None:
    identity(t, "t", name)
    slot = Slot(t)
    t.execute("UPDATE t SET aura = 99 WHERE id = 1")
    t.execute("DELETE FROM t WHERE id = 1")
    messages = decode(slot, old_generation=old_generation)
    found = [m for m in messages if isinstance(m, Update | Delete)]
    assert [images(message) for message in found] == [updated, deleted]


TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (
  id int PRIMARY KEY, m mood NOT NULL, a int[] NOT NULL, n numeric(10,2) NOT NULL,
  ts timestamptz NOT NULL, y bytea NOT NULL, j jsonb NOT NULL, u uuid NOT NULL, b bool NOT NULL,
  f float8 NOT NULL, d date NOT NULL, r int4range NOT NULL, w text NOT NULL
)
"""
VALUES = (
    "'ok', '{1,2}', 1.50, '2024-02-29 12:00+00', '\\xdead', '{\"a\": 1}',"
    " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', true, 0.1, '2024-02-29', '[1,3)', 'w'"
)


@GENERATIONS
@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_any_type_may_be_unsent(yb_database: Database, binary: bool, old_generation: bool) -> None:
    yb_database.execute(TYPES)
    identity(yb_database, "t", "CHANGE")
    slot = Slot(yb_database)
    yb_database.execute(f"INSERT INTO t VALUES (1, {VALUES})")
    yb_database.execute("UPDATE t SET w = 'x'")
    options = {"yboutput__binary": binary}
    insert, _, update, _ = told(decode(slot, old_generation=old_generation, **options))
    assert not {None, U, A} & set(insert[2])
    assert update[2][1:12] == (U,) * 11
    assert update[2][::12] == ((b"\0\0\0\1", b"x") if binary else ("1", "x"))
    assert {type(value) for value in insert[2]} == {bytes if binary else str}


def test_columns_that_come_and_go_are_followed(t: Database) -> None:
    slot = Slot(t)
    t.execute("INSERT INTO t VALUES (2, 'b', 1)")
    t.execute("ALTER TABLE t ADD COLUMN z int")
    t.execute("INSERT INTO t VALUES (3, 'c', 1, 7)")
    t.execute("ALTER TABLE t DROP COLUMN name")
    t.execute("UPDATE t SET z = 8 WHERE id = 3")
    messages = decode(slot)
    seen = [m.relation for m in messages if isinstance(m, RelationSeen)]
    assert [[c.name for c in relation.columns] for relation in seen] == [
        ["id", "name", "aura"],
        ["id", "name", "aura", "z"],
        ["id", "aura", "z"],
    ]
    assert told(messages) == [
        ("I", T, ("2", "b", "1")),
        C,
        ("I", T, ("3", "c", "1", "7")),
        C,
        ("U", T, ("3", U, "8"), ()),
        C,
    ]


def test_transactions_keep_their_order_ends_and_times(t: Database) -> None:
    slot = Slot(t)
    for number in range(3):
        t.execute(f"UPDATE t SET aura = {number}")
    messages = decode(slot)
    begins = [m for m in messages if isinstance(m, Begin)]
    commits = [m for m in messages if isinstance(m, Commit)]
    assert [b.xid for b in begins] == [c.xid for c in commits]
    assert [b.commit_lsn for b in begins] == [c.commit_lsn for c in commits]
    ends = [c.end_lsn for c in commits]
    assert ends == sorted(set(ends))
    assert all(c.commit_lsn < c.end_lsn for c in commits)


@pytest.mark.parametrize("protocol", [1, 2, 3])
def test_every_protocol_version_gives_the_same(t: Database, protocol: int) -> None:
    slot = Slot(t)
    t.execute(STATEMENTS[1])
    found = decode(slot, yboutput__proto_version=protocol)
    assert told(found) == EXPECTED["CHANGE"][2:4]


def test_recordings_are_what_the_double_sends_today(yb_database: Database) -> None:
    """Apart from positions, transaction ids and times, and the OIDs of relations and types."""
    found = {recording.name: recording for recording in record(yb_database)}
    expected = recorded()
    assert found.keys() == expected.keys()
    for name, recording in expected.items():
        fresh = found[name]
        said = []
        for frames in (recording.frames, fresh.frames):
            decoder = HOST.decoders["yboutput"].factory(
                context(yboutput__binary=bool(recording.options))
            )
            shape = [(chr(payload[0]), len(payload)) for _, payload in frames]
            said.append((shape, told(decoder.feed(frames))))
        assert said[0] == said[1], name
