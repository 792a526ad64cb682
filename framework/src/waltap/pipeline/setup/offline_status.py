"""What a process that does not hold the pipeline's lock can tell of its offset and slot: both move."""

from collections.abc import Callable
from typing import Final, TypeVar

from waltap.ports.offsets.offset import Offset, OffsetStore

__all__ = ["asked_of_the_stored_offset"]

TURNS: Final = 20

Answer = TypeVar("Answer")


def asked_of_the_stored_offset(
    store: OffsetStore, ask: Callable[[Offset | None], Answer], refused: Callable[[Answer], bool]
) -> Answer:
    """Return what ``ask`` says of the stored offset.

    ``ask`` reads the slot after the offset was loaded. A pipeline that runs may have stored another offset
    between the two and confirmed it, so that the slot seems to have lost what lies between. An answer that
    is ``refused`` counts only where the stored offset still is the one that was asked about, or has moved
    away ``TURNS`` times. Raises: OffsetError; what ``ask`` raises.
    """
    offset = store.load()
    for _ in range(TURNS):
        answer = ask(offset)
        before, offset = offset, store.load() if refused(answer) else offset
        if offset == before:
            return answer
    return ask(offset)
