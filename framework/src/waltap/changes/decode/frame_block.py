"""Keep frames in the buffer in which they arrived.

A reader that works on columns gets the places of all payloads at once, and copies none. For other
readers a block is a sequence of frames.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from waltap.base.import_rules import np
from waltap.changes.decode.row_block import LazySequence

if TYPE_CHECKING:
    from waltap.changes.decode.decoder import Frame


# Bytes behind the last payload, so that the first numbers of a payload can be read whole.
SPARE: Final = bytes(16)


def numbers_at(
    data: bytes | bytearray, offsets: "np.ndarray[Any, Any]", kind: str
) -> "np.ndarray[Any, Any]":
    """Return the numbers that begin at ``offsets`` in ``data``.

    ``kind`` is a numpy type, such as ">u4". Raises: IndexError for an index outside.
    """
    size = np.dtype(kind).itemsize
    # A number at every byte.
    every: np.ndarray[Any, Any] = np.ndarray(
        (max(0, len(data) - size + 1),), kind, data, strides=(1,)
    )
    found: np.ndarray[Any, Any] = every[offsets]
    return found


class FrameBlock(LazySequence["Frame"]):
    """Hold frames whose payloads lie in one buffer, in order.

    ``starts`` and ``ends`` bound the payloads in ``data``, which has `SPARE` more bytes; ``lsns``
    has the frames' LSNs.
    """

    __slots__ = ("data", "ends", "lsns", "starts")

    def __init__(
        self,
        data: bytes,
        starts: "np.ndarray[Any, Any]",
        ends: "np.ndarray[Any, Any]",
        lsns: "np.ndarray[Any, Any]",
    ) -> None:
        super().__init__()
        self.data, self.starts, self.ends, self.lsns = data, starts, ends, lsns

    @classmethod
    def of(cls, frames: "Sequence[Frame]") -> "FrameBlock":
        """Return ``frames`` as a block, which copies their payloads."""
        if isinstance(frames, cls):
            return frames
        sizes = np.fromiter([len(data) for _, data in frames], "i8", len(frames))
        lsns = np.fromiter([lsn for lsn, _ in frames], "u8", len(frames))
        ends = sizes.cumsum()
        return cls(b"".join([*[data for _, data in frames], SPARE]), ends - sizes, ends, lsns)

    def numbers(self, offsets: "np.ndarray[Any, Any]", kind: str) -> "np.ndarray[Any, Any]":
        """Return the numbers that begin at ``offsets`` in the buffer.

        ``kind`` is a numpy type, such as ">u4". Raises: IndexError for an index outside.
        """
        return numbers_at(self.data, offsets, kind).astype(f"{kind[1]}8")

    @property
    def highest(self) -> int:
        return int(self.lsns.max())

    def __len__(self) -> int:
        return len(self.starts)

    def payload(self, index: int) -> bytes:
        return self.data[self.starts[index] : self.ends[index]]

    def _part(self, start: int, stop: int) -> "FrameBlock":
        return self.part(slice(start, stop))

    def part(self, some: "slice | np.ndarray[Any, Any]") -> "FrameBlock":
        return FrameBlock(self.data, self.starts[some], self.ends[some], self.lsns[some])

    def _make(self) -> "list[Frame]":
        data = self.data
        return [
            (lsn, data[start:end])
            for lsn, start, end in zip(
                self.lsns.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True
            )
        ]
