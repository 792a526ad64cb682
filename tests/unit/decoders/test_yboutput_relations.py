"""What yboutput's decoder makes of a described relation under each replica identity."""

from dataclasses import replace

import msgspec
import pytest

from tests.harness import pgoutput_wire as wire
from tests.harness.captures import context
from waltap.decode import Relation, RelationSeen
from waltap_decoders.yboutput import YbOutput

COLUMNS = (("id", 23, -1, True), ("code", 23, -1, False), ("note", 25, -1, False))


def described(relation: Relation) -> Relation:
    """Play a catalogue in which every column is NOT NULL DEFAULT 1 and the key is (id, code)."""
    columns = tuple(
        msgspec.structs.replace(column, nullable=False, default="1") for column in relation.columns
    )
    return msgspec.structs.replace(relation, columns=columns, primary_key=("id", "code"))


@pytest.mark.parametrize(
    ("letter", "nullable"),
    [
        pytest.param("c", [False, False, True], id="change"),
        pytest.param("d", [False, False, False], id="default"),
        pytest.param("f", [False, False, False], id="full"),
    ],
)
def test_columns_that_may_be_unsent_are_nullable_without_default(
    letter: str, nullable: list[bool]
) -> None:
    """A column of the key never is, whether flagged on the wire or known from the catalogue."""
    decoder = YbOutput(replace(context(), describe=described))
    frames = [wire.begin(100), wire.relation(1, "public", "t", COLUMNS, letter)]
    messages = decoder.feed([(10, frame) for frame in frames])
    (seen,) = (m for m in messages if isinstance(m, RelationSeen))
    assert [column.nullable for column in seen.relation.columns] == nullable
    assert [column.default is None for column in seen.relation.columns] == nullable


def test_nobody_who_describes_leaves_the_wire_as_it_is() -> None:
    frames = [wire.begin(100), wire.relation(1, "public", "t", COLUMNS, "c")]
    _, seen = YbOutput(context()).feed([(10, frame) for frame in frames])
    assert [column.nullable for column in seen.relation.columns] == [None, None, None]
