"""The size of chunks follows the time that they take."""

import pytest

from waltap.ports.snapshot.chunk_source import ChunkSize


@pytest.mark.parametrize(
    ("seconds", "rows"),
    [
        pytest.param([1.0], 1000, id="in time"),
        pytest.param([4.0], 500, id="twice as long"),
        pytest.param([2.01], 750, id="a little longer"),
        pytest.param([60.0], 250, id="much longer"),
        pytest.param([60.0] * 9, 100, id="never below 100"),
        pytest.param([60.0, 1.5], 250, id="near the target it stays"),
        pytest.param([60.0, 0.1], 500, id="soon it grows"),
        pytest.param([60.0, 0.1, 0.1, 0.1, 0.1], 1000, id="never above the first"),
    ],
)
def test_slow_chunks_make_smaller_ones_and_quick_ones_larger(seconds, rows):
    size = ChunkSize(1000, 2.0)
    for each in seconds:
        size.record_duration(each)
    assert size.rows == rows


def test_without_a_target_nothing_changes():
    size = ChunkSize(1000, 0)
    size.record_duration(60.0)
    assert size.rows == 1000


def test_small_chunks_get_no_smaller():
    size = ChunkSize(10, 2.0)
    size.record_duration(60.0)
    assert size.rows == 10


def test_another_table_begins_anew():
    size = ChunkSize(1000, 2.0)
    size.record_duration(60.0)
    size.restart()
    assert size.rows == 1000
