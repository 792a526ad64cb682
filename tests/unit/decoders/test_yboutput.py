"""yboutput's decoder on recorded output of the tests' double, in three ways that mean the same.

The double is built from published sources (tests/harness/servers/yboutput); no YugabyteDB server was run.
"""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.harness import pgoutput_wire as wire
from tests.harness.captures import context, reported, yboutput
from tests.harness.stated_changes import stated_changes
from tests.harness.yboutput_recording import WAYS, recorded

from waltap.changes.decode import Message, Relation
from waltap_decoders.yboutput import YbOutput

EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    name: stated_changes(text) if text else []
    for name, text in {
        "insert": """
            I by_change 1|a|10|ok
            + I by_change 2|NULL|NULL|NULL
            I by_default 1|a|10|ok
            + I by_default 2|NULL|NULL|NULL
            I by_full 1|a|10|ok
            + I by_full 2|NULL|NULL|NULL
            I by_nothing 1|a|10|ok
        """,
        "update": """
            U by_change 1|=|99|=
            U by_change 1|=|NULL|=
            U by_change 1|é|10|sad
            U by_change 1|=|=|NULL
            U by_default 1|a|99|ok
            U by_full 1|a|NULL|ok <- 1|a|10|ok
        """,
        "update_key": """
            D by_change 2|-|-|-
            + I by_change 3|moved|NULL|NULL
            D by_default 2|-|-|-
            + I by_default 3|NULL|NULL|NULL
            D by_full 2|NULL|NULL|NULL
            + I by_full 3|NULL|NULL|NULL
        """,
        "transaction": """
            I by_change 4|d|4|ok
            + U by_change 4|=|1|=
            + D by_change 4|-|-|-
        """,
        "delete": """
            D by_change 1|-|-|-
            D by_default 1|-|-|-
            D by_full 1|a|NULL|ok
        """,
        "unsent": "",
        "evolution": """
            I evolves 1|1|x
            U evolves 1|2|=|=
            U evolves 1|=|6
        """,
    }.items()
}


def decode(way: str, part: str, *, one_by_one: bool = False) -> list[Message]:
    recording = recorded()[f"{way}: {part}"]
    decoder = YbOutput(context(version=recording.version_num))
    pieces = [[frame] for frame in recording.frames] if one_by_one else [recording.frames]
    return [message for piece in pieces for message in decoder.feed(piece)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", EXPECTED)
def test_every_way_of_sending_means_the_same(way, part):
    for one_by_one in (False, True):
        messages = decode(way, part, one_by_one=one_by_one)
        assert reported(messages) == EXPECTED[part]


def test_every_recording_is_looked_at():
    assert set(recorded()) == {f"{way}: {part}" for way in WAYS for part in EXPECTED}


def test_protocol_1_is_asked_for_and_nothing_else():
    options = yboutput(version=150008).start_options()
    assert options == {"proto_version": "1", "publication_names": '"p"'}


COLUMNS = (("id", 23, -1, True), ("code", 23, -1, False), ("note", 25, -1, False))


def described(relation: Relation) -> Relation:
    """Play a catalogue in which every column is NOT NULL DEFAULT 1 and the key is (id, code)."""
    columns = tuple(
        msgspec.structs.replace(column, nullable=False, default="1") for column in relation.columns
    )
    return msgspec.structs.replace(relation, columns=columns, primary_key=("id", "code"))


@pytest.mark.parametrize(
    ("letter", "describe", "nullable"),
    [
        pytest.param("c", described, [False, False, True], id="change"),
        pytest.param("d", described, [False, False, False], id="default"),
        pytest.param("f", described, [False, False, False], id="full"),
        pytest.param("c", None, [None, None, None], id="nobody who describes"),
    ],
)
def test_columns_that_may_be_unsent_are_nullable_without_default(letter, describe, nullable):
    """A column of the key never is, whether flagged on the wire or known from the catalogue."""
    frames = [wire.begin(100), wire.relation(1, "public", "t", COLUMNS, letter)]
    _, seen = YbOutput(replace(context(), describe=describe)).feed([(10, f) for f in frames])
    columns = seen.relation.columns
    assert [column.nullable for column in columns] == nullable
    assert [column.default is None for column in columns] == [n is not False for n in nullable]
