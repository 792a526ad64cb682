"""Every decoder on recorded output of real servers: what it says. `DecoderSuite` damages the same sessions."""

from typing import Any

import pytest
from tests.harness.captures import (
    NOT_JSON,
    all_sessions,
    changes,
    decoded,
    reported,
)
from tests.unit.decoders.expected_changes import EXPECTED, FILTER, GEN

from waltap.changes.decode import (
    CommitPrepared,
    LogicalMessage,
    Origin,
    StreamAbort,
    StreamPrepare,
    Truncate,
)
from waltap.errors import DecodeError

SESSIONS = list(all_sessions())
OTHER_WIRES = [(name, s) for name, s in SESSIONS if not name.startswith(("pgoutput", "pg16"))]
PUBLISHED = frozenset(row[1] for rows in EXPECTED.values() for row in rows if row[0] in "IUD")


@pytest.mark.parametrize("scenario", EXPECTED)
def test_pgoutput_says_what_the_statements_did(scenario):
    assert reported(decoded("pgoutput_v1", scenario)) == EXPECTED[scenario]


@pytest.mark.parametrize(("name", "scenario"), OTHER_WIRES)
def test_other_plugins_say_the_same_but_for_what_they_lack(name, scenario):
    wanted = EXPECTED.get(scenario, [])
    tables = PUBLISHED if wanted else frozenset()
    found = [row for row in reported(decoded(name, scenario), tables=tables) if row[0] in "IUD"]
    missing = [row for row in wanted if row[0] in "IUD"]
    if scenario == "rowfilter":  # only pgoutput filters rows: it reports five changes in seven
        assert [row[0] for row in found] == ["I", "I", "U", "U", "U", "D", "D"]
        assert {row[1] for row in found} == {FILTER}
        return
    if scenario == "columnlist":  # nor columns: there is one more, at the end
        assert [row[2][:2] for row in found] == [row[2][:2] for row in missing]
        return
    if scenario == "generated":  # they send generated columns, third here
        missing = [
            (*row[:2], (*row[2][:2], g, row[2][2]), *row[3:])
            for row, g in zip(missing, ("10", "12"), strict=True)
        ]
        assert {row[1] for row in found} == {GEN}
    if name == "decoderbufs" and scenario == "delete":  # it reports rows without identity, too
        found = [row for row in found if row[2]]
    assert found == [_lossy(name, row) for row in missing]


def _lossy(name: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return ``row`` as a plugin brings it that cannot carry all of it."""
    lost: dict[str | None, str | None] = {}
    if name.startswith("wal2json"):
        lost = dict.fromkeys(("NaN", "Infinity", "-Infinity"))
    elif name == "decoderbufs":
        lost = {"12:34:56.789+05:30": "07:04:56.789+00", "24:00:00-15:59": "15:59:00+00"}
    new = tuple(lost.get(value, value) if isinstance(value, str) else value for value in row[2])
    return (*row[:2], new, *row[3:])


@pytest.mark.parametrize(("name", "scenario"), sorted(NOT_JSON))
def test_what_is_not_json_is_refused_with_its_place(name, scenario):
    with pytest.raises(DecodeError) as caught:
        decoded(name, scenario)
    assert caught.value.lsn > 0
    assert caught.value.offset > 0


@pytest.mark.parametrize(("scenario", "offset"), [("w2j_invalid_utf8", 61), ("w2j_badjson", 128)])
def test_what_no_json_reads_is_named_at_its_byte(scenario, offset):
    with pytest.raises(DecodeError) as caught:
        decoded("wal2json_v2", scenario)
    assert caught.value.offset == offset


# --- what each shows besides its changes ---------------------------------------------------------


@pytest.mark.parametrize("name", ["wal2json_v1_all", "wal2json_v2_all"])
def test_origin_of_wal2json_is_a_number(name):
    origins = [m for m in decoded(name, "origin") if isinstance(m, Origin)]
    assert [origin.name for origin in origins] == ["1"]


def test_wal2json_truncates_one_table_a_message_and_format_1_none():
    tables = [
        m.relations[0].table for m in decoded("wal2json_v2", "truncate") if isinstance(m, Truncate)
    ]
    assert tables == ["t_default", "t_fk_parent", "t_fk_child", "t_full", "t_nothing", "t_nopk"]
    assert not changes(decoded("wal2json_v1", "truncate"))


@pytest.mark.parametrize("name", ["wal2json_v1", "wal2json_v2", "wal2json_v1_chunks"])
def test_messages_of_wal2json_end_at_their_first_nul(name):
    found = [m for m in decoded(name, "message") if isinstance(m, LogicalMessage)]
    assert [(m.transactional, m.prefix, m.content) for m in found] == [
        (True, "pfx", "transactional ✓".encode()),
        (False, "pfx", b"non-transactional"),
        (True, "", b""),
    ]


def test_a_parallel_stream_shows_position_and_time_of_an_abort():
    messages = decoded("pg16/pgoutput_v4_parallel", "stream_commit")
    (abort,) = (m for m in messages if isinstance(m, StreamAbort))
    assert abort.abort_lsn == 0x2294DA0
    assert 1_700_000_000_000_000 < abort.abort_ts < 2_000_000_000_000_000


def test_a_streamed_transaction_may_be_prepared():
    *_, prepare, fate = decoded("pgoutput_v3_stream_twophase", "stream_prepare")
    assert isinstance(prepare, StreamPrepare)
    assert (prepare.xid, prepare.gid) == (1163, "gid-big")
    assert prepare.prepare_lsn < prepare.end_lsn == prepare.lsn
    assert isinstance(fate, CommitPrepared)
    assert fate.gid == "gid-big"
