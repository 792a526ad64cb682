"""The judge catches every kind of fault when it is planted, and stays silent without one."""

import copy
import json

import pytest
from tests.hunt import oracle
from tests.hunt.delivered import Event, from_record
from tests.hunt.judge import Case, Life, judge
from tests.hunt.oracle import UNSENT, Ddl, State, Table, Transaction
from tests.hunt.scenario import draw
from tests.hunt.source import BY_NAME
from tests.hunt.values import TYPES, canonical, from_text

T = "public.t"
TYPES_OF = {"id": "integer", "v": "text", "big": "text"}


def table(rows=(), key=("id",), identity="d", oid=1, columns=None):
    return Table(oid, dict(columns or TYPES_OF), key, key, identity, rows=[dict(r) for r in rows])


def row(number, v="v", big="big"):
    return {"id": number, "v": v, "big": big}


def change(op, new=None, old=None, name=T):
    return oracle.Change(op, name, old, new, TYPES_OF)


def made(name=T, **options):
    return Ddl((), {}, {name: table(**options)})


HISTORY = [
    Transaction(1, 10, [made(), change("c", row(1)), change("c", row(2))]),
    # what the snapshot has ends here
    Transaction(2, 20, [change("c", row(3)), change("u", row(1, "w", UNSENT))]),
    Transaction(3, 30, [change("u", row(9, "v", UNSENT), {"id": 2}), change("d", None, {"id": 3})]),
    Transaction(4, 40, [change("u", row(1, "x"))]),
]


def read(number, v="v", big="big", **more):
    return Event("r", T, {"id": number}, None, row(number, v, big), snapshot="initial", **more)


def event(op, xid, number, v="v", big="big", before=None):
    after = None if op == "d" else row(number, v, big)
    before = {"id": number, "v": None, "big": None} if op == "d" else before
    return Event(op, T, {"id": number}, before, after, xid)


HIDDEN = "__debezium_unavailable_value"


def delivered():
    events = [
        read(1, first=True),
        read(2),
        event("c", 2, 3),
        event("u", 2, 1, "w", HIDDEN),
        event("d", 3, 2),
        event("c", 3, 9, "v", HIDDEN),
        event("d", 3, 3),
        event("u", 4, 1, "x"),
    ]
    for number, one in enumerate(events):
        one.at = number
    return events


def source(history=HISTORY):
    state = State()
    for transaction in history:
        for item in transaction.items:
            state.apply(item)
    return state.tables


def test_what_a_pipeline_did_until_it_was_begun_anew_is_judged_without_the_end():
    events = delivered()[:6]
    assert judge(Case(), HISTORY, events, [Life(0)], None) == []
    del events[4]
    assert {finding.kind for finding in judge(Case(), HISTORY, events, [Life(0)], None)} == {"lost"}


def kinds(events, lives=(Life(0),), case=None, history=HISTORY, tables=None):
    for number, one in enumerate(events):
        one.at = number
    found = judge(case or Case(), history, events, lives, tables or source(history))
    return {finding.kind for finding in found}


def test_what_is_right_is_not_found_fault_with():
    assert kinds(delivered()) == set()


def without(numbers):
    return lambda events: events.__delitem__(numbers)


def put(numbers, *new):
    return lambda events: events.__setitem__(numbers, new)


AGAIN = slice(4, 7)
"""Events of the third transaction."""


def again(events):
    """Bring a transaction a second time, before the last one."""
    events[7:7] = copy.deepcopy(events[AGAIN])


ONE_UPDATE = Event("u", T, {"id": 9}, None, row(9, "v", HIDDEN), 3)
STORED_20, STORED_30 = ((Life(0), Life(7, stored=lsn)) for lsn in (20, 30))
ONCE = Case(exactly_once=True)
FAULTS = [
    ("a row that the snapshot lacks", without(0), {"snapshot"}),
    ("a row that the snapshot lacks and that is deleted later", without(1), {"snapshot"}),
    ("a lost insert", without(2), {"lost"}),
    ("a lost update", without(3), {"lost"}),
    ("a lost half of a key change", without(4), {"lost", "state"}),
    ("the other half of it", without(5), {"lost", "state"}),
    ("a lost delete", without(6), {"lost", "state"}),
    ("a lost last change", without(7), {"lost", "state"}),
    ("a wrong value", lambda events: events[2].after.update(v="other"), {"value"}),
    ("a placeholder for a value that was sent", lambda events: events[7].after.update(big=HIDDEN), {"value"}),
    ("a null key of a table with one", lambda events: setattr(events[2], "key", None), {"key"}),
    ("a key change as one update", put(slice(4, 6), ONE_UPDATE), {"lost", "state"}),
    ("changes in the wrong order", lambda events: events.insert(2, events.pop(3)), {"lost", "twice"}),
    ("transactions in the wrong order", lambda events: events.insert(4, events.pop()), {"lost", "state", "twice"}),
    ("a change of no transaction", lambda events: events.append(event("c", 99, 77)), {"foreign"}),
    ("a transaction that comes again within a life", again, {"twice"}),
    ("one that was not stored, after a restart", again, set(), STORED_20),
    ("one that was stored", again, {"repeat"}, STORED_30),
    ("one that was not stored, to an exactly-once sink", again, {"twice"}, STORED_20, ONCE),
    ("a gap after a restart", without(AGAIN), {"lost", "state"}, (Life(0), Life(4, stored=30))),
]  # fmt: skip
"""What is planted, and what the judge finds; where it is told of lives, and of the sink, those."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_the_judge_finds_what_is_planted_and_nothing_else(fault):
    _, plant, found, *more = fault
    events = delivered()
    plant(events)
    assert kinds(events, *more) == found


def test_without_any_change_after_it_the_snapshot_is_held_against_the_end():
    history = HISTORY[:1]
    assert kinds([read(1, first=True), read(2)], history=history) == set()
    assert kinds([read(1, first=True)], history=history) == {"snapshot", "state"}


def test_rows_of_an_incremental_snapshot_are_as_the_table_is_there():
    chunk = Event("r", T, {"id": 9}, None, row(9), snapshot="incremental")
    events = delivered()
    assert kinds([*events[:7], copy.deepcopy(chunk), events[7]]) == set()
    stale = Event("r", T, {"id": 1}, None, row(1, "v"), snapshot="incremental")
    events = delivered()
    assert "chunk value" in kinds([*events[:7], stale, events[7]])
    gone = Event("r", T, {"id": 3}, None, row(3), snapshot="incremental")
    events = delivered()
    assert "chunk" in kinds([*events[:7], gone, events[7]])


def test_a_snapshot_that_is_begun_again_counts_from_its_last_beginning():
    events = [read(1, first=True), *delivered()]
    assert kinds(events, [Life(0), Life(1)]) == set()


def test_a_table_rewritten_before_it_was_read_may_be_read_empty():
    wider = {**TYPES_OF, "id": "bigint"}
    history = [
        Transaction(1, 10, [made()]),
        Transaction(2, 20, [made(columns=wider)]),
        Transaction(3, 30, [change("c", row(1)), change("d", None, {"id": 1})]),
        Transaction(4, 40, [change("c", row(2))]),
    ]
    case, read_before = Case(created=15), [event("c", 4, 2)]
    assert kinds(read_before, case=case, history=history) == set()
    assert "lost" in kinds([], case=case, history=history)


def test_rows_that_stay_after_they_are_gone_in_the_source_are_too_many():
    tables = source()
    tables[T].rows.pop()
    assert kinds(delivered(), tables=tables) == {"state"}


LATE = [
    *HISTORY,
    Transaction(5, 50, [made("public.late", oid=7), change("c", row(1), name="public.late")]),
    Transaction(6, 60, [change("c", row(2), name="public.late")]),
]


def test_a_table_that_joins_later_must_be_whole_or_announced():
    late = Case(late=frozenset({7}))
    assert kinds(delivered(), case=late, history=LATE) == {"late table"}
    announced = Case(late=frozenset({7}), announced=frozenset({"public.late"}))
    assert kinds(delivered(), case=announced, history=LATE) == set()
    second = Event("c", "public.late", {"id": 2}, None, row(2), 6)
    assert kinds([*delivered(), second], case=late, history=LATE) == {"late table"}
    first = Event("r", "public.late", {"id": 1}, None, row(1), snapshot="incremental")
    assert kinds([*delivered(), second, first], case=late, history=LATE) == set()


def test_a_table_made_in_the_stream_must_be_whole():
    assert kinds(delivered(), history=LATE) >= {"lost", "state"}


RENAMED = [
    *HISTORY,
    Transaction(5, 50, [Ddl((), {T: "public.u"}, {})]),
    Transaction(6, 60, [change("d", None, {"id": 1}, name="public.u")]),
]


def test_a_renamed_table_takes_its_rows_along():
    gone = Event("d", "public.u", {"id": 1}, {"id": 1}, None, 6)
    assert kinds([*delivered(), gone], history=RENAMED) == set()
    wrong = Event("d", T, {"id": 1}, {"id": 1}, None, 6)
    assert kinds([*delivered(), wrong], history=RENAMED)


DROPPED_KEY = [
    *HISTORY,
    Transaction(5, 50, [change("u", row(7), {"id": 9})]),
    Transaction(6, 60, [made(key=(), identity="f", rows=[row(7), row(1, "x")])]),
]


def test_a_change_has_the_key_of_its_moment_where_the_wire_shows_it():
    whole = [Event("u", T, None, None, row(7), 5)]
    assert kinds([*delivered(), *whole], history=DROPPED_KEY)
    halves = [event("d", 5, 9), event("c", 5, 7)]
    assert kinds([*delivered(), *halves], history=DROPPED_KEY) == set()


def test_without_the_key_of_its_moment_a_change_of_a_key_may_be_one_update():
    whole = event("u", 5, 7, before=row(9))
    whole.key = None
    assert kinds([*delivered(), whole], history=DROPPED_KEY, case=Case(wire_keys=False)) == set()
    kept = DROPPED_KEY[:-1]
    assert "lost" in kinds([*delivered(), whole], history=kept, case=Case(wire_keys=False))


def test_a_row_may_move_onto_a_key_that_its_holder_leaves_in_the_same_statement():
    """A deferrable key: the rows 1 and 2 become 2 and 3, one after the other."""
    moves = [change("u", row(2), row(1)), change("u", row(3), row(2))]
    history = [
        Transaction(1, 10, [made(identity="f"), change("c", row(1)), change("c", row(2))]),
        Transaction(2, 20, moves),
    ]
    rows = [read(1, first=True), read(2)]
    moved = [event("d", 2, 1), event("c", 2, 2), event("d", 2, 2), event("c", 2, 3)]
    for one in (moved[0], moved[2]):
        one.before = row(one.before["id"])
    assert kinds([*rows, *moved], history=history) == set()


def test_transactions_reported_at_prepare_may_come_early_but_must_come_whole():
    floating = Case(floating=frozenset({3}))
    events = delivered()
    early = [*events[:2], *events[4:7], *events[2:4], events[7]]
    early[2], early[4] = early[2], early[4]
    assert "lost" not in kinds(early, case=floating)
    del early[3]
    assert "lost" in kinds(early, case=floating)


def test_a_table_that_joins_later_may_be_left_out_of_what_is_reported_at_prepare():
    late = [
        *HISTORY[:3],
        Transaction(
            4, 40, [made("public.late", oid=7), change("c", row(1), name="public.late"),
                    change("u", row(1, "x"))],
        ),
    ]  # fmt: skip
    case = Case(floating=frozenset({4}), late=frozenset({7}), announced=frozenset({"public.late"}))
    assert kinds(delivered(), case=case, history=late) == set()
    assert kinds(delivered()[:7], case=case, history=late) >= {"lost"}


FULL = [
    Transaction(1, 10, [made(identity="f"), change("c", row(1))]),
    Transaction(2, 20, [change("u", row(1, "w"), row(1))]),
]


def test_under_full_the_old_row_comes():
    rows = [read(1, first=True)]
    right = event("u", 2, 1, "w", before=row(1))
    assert kinds([*rows, right], history=FULL) == set()
    assert kinds([read(1, first=True), event("u", 2, 1, "w")], history=FULL) == {"old"}
    wrong = event("u", 2, 1, "w", before=row(1, "other"))
    assert "old" in kinds([read(1, first=True), wrong], history=FULL)


# --- what it reads with --------------------------------------------------------------------------


def test_the_oracles_text_is_read_back():
    text = (
        'table "Odd S"."t""q": UPDATE: old-key: id[integer]:1 new-tuple: id[integer]:2'
        " \"a b\"[character varying]:'it''s ]: x' n[integer[]]:'{1,NULL}'"
        " big[text]:unchanged-toast-datum z[numeric]:null b[boolean]:true"
    )
    lines = [("0/1", 7, "BEGIN 7"), ("0/2", 7, text), ("0/30", 7, "COMMIT 7")]
    (transaction,) = oracle.read(lines)
    assert (transaction.xid, transaction.commit_lsn) == (7, 0x30)
    (found,) = transaction.items
    assert (found.op, found.table, found.old) == ("u", 'Odd S.t"q', {"id": 1})
    assert found.new == {
        "id": 2, "a b": "it's ]: x", "n": [1, None], "big": UNSENT, "z": None, "b": True,
    }  # fmt: skip


def test_a_truncate_of_several_tables_is_one_each():
    lines = [
        ("0/1", 7, "BEGIN 7"),
        ("0/2", 7, 'table public.a, public."b c": TRUNCATE: (no-flags)'),
        ("0/3", 7, "COMMIT 7"),
    ]
    (transaction,) = oracle.read(lines)
    assert [(c.op, c.table) for c in transaction.items] == [("t", "public.a"), ("t", "public.b c")]


def test_a_marker_is_read_into_the_tables_it_shows():
    reported = {
        "gone": ["public.x"], "renamed": {"public.a": T},
        "tables": {T: {"oid": 5, "columns": [["id", "integer"]], "key": ["id"], "primary_key": ["id"],
                       "identity": "d", "generated": [], "required": ["id"], "rows": [["1"]]}},
    }  # fmt: skip
    data = f"message: transactional: 1 prefix: hunt, sz: 9 content:{json.dumps(reported)}"
    lines = [("0/1", 7, "BEGIN 7"), ("0/2", 7, data), ("0/3", 7, "COMMIT 7")]
    (transaction,) = oracle.read(lines)
    (ddl,) = transaction.items
    assert ddl.gone == ("public.x",)
    assert ddl.tables[T].rows == [{"id": 1}]


def test_a_tombstone_is_no_event():
    assert from_record({"key": {"id": 1}, "value": None}) is None


SAMPLES = [
    ("numeric", "1.500", "1.5"),
    ("bytea", "\\x00ff", "00ff"),
    ("bytea", "\\x00ff", b"\x00\xff"),
    ("timestamp with time zone", "2020-01-02 03:04:05+00", "2020-01-02T03:04:05.000000Z"),
    ("timestamp without time zone", "2020-01-02 03:04:05.5", "2020-01-02T03:04:05.5Z"),
    ("date", "2020-01-02", "2020-01-02Z"),
    ("time without time zone", "03:04:05.1", "03:04:05.1Z"),
    ("jsonb", '{"a": 1, "b": null}', '{"b": null, "a": 1}'),
    ("boolean", "t", True),
    ("text[]", '{a,"b\\"c,",NULL,"NULL"}', ["a", 'b"c,', None, "NULL"]),
    ("integer[]", "{}", []),
    ("double precision", "-2e+300", -2e300),
]


@pytest.mark.parametrize(("kind", "text", "held"), SAMPLES)
def test_both_sides_of_a_value_are_one(kind, text, held):
    assert from_text(kind, text) == canonical(kind, held)


def test_every_type_of_the_catalogue_is_made_by_name():
    assert set(BY_NAME.values()) <= set(TYPES)


def test_a_seed_is_one_scenario():
    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    assert draw(5).keep([0, 2]).steps == (draw(5).steps[0], draw(5).steps[2])


def test_what_was_confirmed_must_be_there_when_a_life_ends():
    events = delivered()
    del events[4:7]
    assert "confirmed" in kinds(events, [Life(0), Life(4, stored=20, confirmed=30)])
    assert "confirmed" not in kinds(delivered(), [Life(0), Life(4, stored=20, confirmed=20)])
    late = [Life(0), Life(99, stored=30, confirmed=40)]
    assert "confirmed" in kinds(delivered()[:7], late)
