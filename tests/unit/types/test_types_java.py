"""Numbers and hash maps as Java gives them: recorded from OpenJDK 17."""

import struct
from pathlib import Path

import pytest

from waltap.changes.mapping.java_number import double_text, float_text, java_order

GOLDEN = Path(__file__).parents[2] / "golden" / "types"


def recorded(name: str, separator: str) -> list[list[str]]:
    lines = (GOLDEN / name).read_text(encoding="utf-8").splitlines()
    return [line.split(separator) for line in lines if not line.startswith("#")]


@pytest.mark.parametrize(
    ("file", "count", "number", "bits", "written"),
    [
        pytest.param("java_floats.txt", 1132, ">f", ">i", float_text, id="floats"),
        pytest.param("java_doubles.txt", 989, ">d", ">q", double_text, id="doubles"),
    ],
)
def test_numbers_are_written_as_java_writes_them(file, count, number, bits, written):
    rows = recorded(file, " ")
    assert len(rows) == count
    for given, text in rows:
        (value,) = struct.unpack(number, struct.pack(bits, int(given)))
        assert written(value) == text


def test_special_numbers_have_names():
    for value, text in ((float("nan"), "NaN"), (float("-inf"), "-Infinity"), (-0.0, "-0.0")):
        assert float_text(value) == double_text(value) == text


def test_keys_come_in_the_order_of_a_java_hash_map():
    rows = recorded("java_hash_maps.txt", "\t")
    assert len(rows) == 28
    for inserted, iterated in rows:
        assert java_order(inserted.split("|")) == iterated.split("|")
