"""The plan of a relation: what old tuples mean, what the key is, what is masked and left out."""

import pytest
from tests.harness.json_events import IDENTITIES, split_properties, table

from waltap.base.plugin_errors import UnusableResult
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.decode.message import Delete, OldTuple, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.events import EventContext, EventPlan, EventPlans
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap_postgres.types import TYPE_SPECS


def context(**properties: str) -> EventContext:
    given = {"topic.prefix": "t", **properties}
    return EventContext(
        describe=lambda relation: relation,
        identity=lambda relation: IDENTITIES[relation.identity](relation),
        capture=CaptureRules(split_properties(given)[0]),
        mapper=TypeRegistry(TYPE_SPECS),
    )


def plan(relation: Relation, *, by_row: bool = False, **properties: str) -> EventPlan:
    return EventPlan(relation, relation, context(**properties), by_row=by_row)


BY_KEY = table("a", "id int4 not null", "v text", "w text")
BY_ROW = table("a", "id int4 not null", "v text", "w text", identity="f")
BY_INDEX = table("a", "id int4 not null", "v text not null", identity="i", index=("v",))
BY_NOTHING = table("a", "id int4 not null", "v text", identity="n")


def test_keys_are_those_configured_and_rows_are_known_by_the_identity():
    configured = {"message.key.columns": r"public\.a:w"}
    made = plan(BY_KEY, **configured)
    assert (made.keys, made.identifying) == ((2,), (0,))
    assert plan(BY_KEY, by_row=True, **configured).keys == (0,)
    assert plan(BY_INDEX).keys == (0,)
    assert plan(BY_INDEX, by_row=True).keys == (1,)


@pytest.mark.parametrize(
    ("relation", "old", "new", "kind", "expected"),
    [
        pytest.param(
            BY_KEY, ("1", ABSENT, ABSENT), ("2", "a", None), OldTuple.KEY,
            (("1", ABSENT, ABSENT), ("2", "a", None), ("1", ABSENT, ABSENT)), id="another-key",
        ),
        pytest.param(
            BY_ROW, ("1", "a", "b"), ("1", "c", UNCHANGED), OldTuple.FULL,
            (("1", "a", "b"), ("1", "c", "b"), None), id="whole-row",
        ),
        pytest.param(
            BY_ROW, ("1", "a", "b"), (UNCHANGED, "c", "b"), OldTuple.FULL,
            (("1", "a", "b"), ("1", "c", "b"), None), id="key-that-was-not-sent-again",
        ),
        pytest.param(
            BY_INDEX, (ABSENT, "a"), ("1", "b"), OldTuple.KEY,
            ((ABSENT, "a"), ("1", "b"), None), id="old-key-that-is-not-known",
        ),
    ],
)  # fmt: skip
def test_an_update_with_an_old_tuple(relation, old, new, kind, expected):
    assert plan(relation).update(Update(relation, 1, new, old, kind)) == expected


@pytest.mark.parametrize("call", ["update", "delete"])
def test_an_identity_that_gives_no_images_is_named(call):
    made, old = plan(BY_KEY), ("1", ABSENT, ABSENT)
    setattr(made.identity, call, lambda _change: old)
    changes = {
        "update": Update(BY_KEY, 1, old, old, OldTuple.KEY),
        "delete": Delete(BY_KEY, 1, old, OldTuple.KEY),
    }
    with pytest.raises(UnusableResult, match=rf"DefaultIdentity.{call} gave tuple, not RowImages"):
        getattr(made, call)(changes[call])


def test_a_format_may_say_which_keys_are_written_alike():
    update = Update(BY_KEY, 1, ("01", "a", None), ("1", ABSENT, ABSENT), OldTuple.KEY)
    alike = plan(BY_KEY).update(update, lambda old, new: int(old[0]) == int(new[0]))
    assert alike == (("1", ABSENT, ABSENT), ("01", "a", None), None)


def test_a_delete_that_identifies_no_row_is_no_event():
    assert plan(BY_NOTHING).delete(Delete(BY_NOTHING, 1, (), OldTuple.NONE)) is None
    old = ("1", ABSENT, ABSENT)
    assert plan(BY_KEY).delete(Delete(BY_KEY, 1, old, OldTuple.KEY)) == (old, old)


def test_masks_leave_keys_and_what_was_not_sent():
    made = plan(BY_KEY, **{"column.mask.with.3.chars": r".*\.(v|w)"})
    masks = made.masks(unmasked=frozenset({2}))
    assert set(masks) == {1}
    assert (masks[1]("secret"), masks[1](UNCHANGED)) == ("***", UNCHANGED)


@pytest.mark.parametrize(
    ("declared", "text", "expected"),
    [
        ("v text", "abcd\U0001d11e", "abcd?"),  # half of its last character is no text
        ("v bytea", "\\x0102030405060708", "\\x0102030405"),
        ("v timestamptz", "2020-01-01 12:34:56+00", None),
        ("v timestamptz", "infinity", None),
        ("v bytea", None, None),
        ("v bytea", UNCHANGED, UNCHANGED),
        ("v uuid", "01234567-89ab-cdef-0123-456789abcdef", "01234"),
    ],
)
def test_a_shortened_value_is_one_of_its_type(declared, text, expected):
    relation = table("a", "id int4 not null", declared)
    masks = plan(relation, **{"column.truncate.to.5.chars": r".*\.v"}).masks()
    assert masks[1](text) == expected


def test_a_time_that_is_shortened_is_not_another_time():
    masks = plan(
        table("a", "id int4 not null", "v timestamptz"), **{"column.truncate.to.22.chars": r".*\.v"}
    ).masks()
    assert masks[1]("0044-03-15 00:00:00+00 BC") is None
    assert masks[1]("0044-03-15 00:00:00+00") == "0044-03-15 00:00:00+00"


def test_a_relation_announced_again_keeps_what_was_made_of_it():
    built: list[EventPlan] = []
    plans = EventPlans(context(), lambda made: built.append(made) or len(built))
    again = table("a", "id int4 not null", "v text", "w text")
    wider = table("a", "id int4 not null", "v text", "w text", "x text")
    assert [plans.of(each) for each in (BY_KEY, again, BY_KEY, wider, again)] == [1, 1, 1, 2, 1]
    plans.forget(BY_KEY.oid)
    assert plans.compiled == {}
