"""Numbers and hash maps as Java gives them: recorded from OpenJDK 17."""

import struct
from pathlib import Path

import pytest

from waltap.changes.mapping.java_number import double_text, float_text
from waltap_postgres.types.hstore import java_order, parse_hstore

GOLDEN = Path(__file__).parents[2] / "golden" / "types"


def recorded(name: str, separator: str) -> list[list[str]]:
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    return [line.split(separator) for line in lines if not line.startswith("#")]


def test_floats_are_written_as_java_writes_them() -> None:
    rows = recorded("java_floats.txt", " ")
    assert len(rows) > 1000
    for bits, text in rows:
        (value,) = struct.unpack(">f", struct.pack(">i", int(bits)))
        assert float_text(value) == text


def test_doubles_are_written_as_java_writes_them() -> None:
    rows = recorded("java_doubles.txt", " ")
    assert len(rows) > 900
    for bits, text in rows:
        (value,) = struct.unpack(">d", struct.pack(">q", int(bits)))
        assert double_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (-0.0, "-0.0"),
    ],
)
def test_special_numbers_have_names(value: float, text: str) -> None:
    assert float_text(value) == double_text(value) == text


def test_keys_come_in_the_order_of_a_java_hash_map() -> None:
    rows = recorded("java_hash_maps.txt", "\t")
    assert len(rows) == 28
    for inserted, iterated in rows:
        assert java_order(inserted.split("|")) == iterated.split("|")


def test_hstore_keeps_the_servers_order_before_java_reorders_it() -> None:
    assert list(parse_hstore('"b"=>"1", "a"=>NULL')) == ["b", "a"]
