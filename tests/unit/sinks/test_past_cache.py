"""Blocks past the page cache: the bytes of a file are those of an ordinary write."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waltap.sink import direct_writer
from waltap.sink.direct_writer import ALIGNED, BUFFER_BYTES, LEAST_BYTES, PastCache


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    yield path, fd
    os.close(fd)


def append(cache: PastCache, fd: int, block: bytes) -> int:
    """Append ``block`` as a sink does; return how much of it went the ordinary way."""
    rest = cache.write(fd, os.fstat(fd).st_size, memoryview(block))
    left = len(rest)
    while rest:
        rest = rest[os.write(fd, rest) :]
    return left


def pattern(size: int, seed: int) -> bytes:
    return (bytes(range(seed, 251)) * (size // 200 + 2))[:size]


SIZES = [
    *(LEAST_BYTES, LEAST_BYTES + 1, LEAST_BYTES - 1, 10, 2 * BUFFER_BYTES, 2 * BUFFER_BYTES + 4095),
    *(ALIGNED, 3 * BUFFER_BYTES - 1, LEAST_BYTES + ALIGNED),
]


def test_blocks_of_any_size_stand_one_after_the_other(file: tuple[Path, int]) -> None:
    path, fd = file
    cache, expected, ordinary = PastCache(), b"", 0
    for seed, size in enumerate(SIZES):
        block = pattern(size, seed)
        ordinary += append(cache, fd, block)
        expected += block
        assert path.read_bytes() == expected
    if not cache.refused:  # a file system may know no direct writes
        assert ordinary < sum(size for size in SIZES if size < LEAST_BYTES) + len(SIZES) * ALIGNED


def test_the_descriptor_is_as_it_was(file: tuple[Path, int]) -> None:
    _, fd = file
    append(PastCache(), fd, pattern(2 * LEAST_BYTES, 1))
    os.write(fd, b"odd")
    assert os.fstat(fd).st_size == 2 * LEAST_BYTES + 3


@pytest.mark.parametrize("place", ["flag", "write"])
def test_where_it_cannot_be_done_it_is_written_in_the_ordinary_way(
    file: tuple[Path, int], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fd = file

    def refuse(*_given: object) -> int:
        raise OSError(errno.EINVAL, "no direct writes here")

    def on(call: Callable[..., int]) -> Callable[..., int]:
        return lambda fd, number, *more: (
            refuse() if number == direct_writer.fcntl.F_SETFL and more[0] & direct_writer._DIRECT
            else call(fd, number, *more)
        )  # fmt: skip

    cache, block = PastCache(), pattern(2 * LEAST_BYTES, 3)
    with monkeypatch.context() as patch:
        if place == "flag":
            patch.setattr(direct_writer.fcntl, "fcntl", on(direct_writer.fcntl.fcntl))
            assert append(cache, fd, block) == len(block)
        else:
            patch.setattr(PastCache, "_direct", staticmethod(refuse))
            assert append(cache, fd, block) == len(block)
    assert path.read_bytes() == block
    assert append(cache, fd, block) == len(block), "it is not tried again"
    assert path.read_bytes() == 2 * block


def test_a_full_disk_is_told_of(file: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    _, fd = file

    def full(*_given: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(PastCache, "_direct", staticmethod(full))
    if not PastCache().refused:
        with pytest.raises(OSError, match="no room"):
            append(PastCache(), fd, pattern(2 * LEAST_BYTES, 3))
