"""Ask about offset and slot without the pipeline's lock: both move."""

from collections.abc import Callable
from typing import Final, TypeVar

from waltap.ports.offsets.offset import Offset, OffsetStore

TURNS: Final = 20

Answer = TypeVar("Answer")


def asked_of_the_stored_offset(
    store: OffsetStore, ask: Callable[[Offset | None], Answer], refused: Callable[[Answer], bool]
) -> Answer:
    """Return the answer of ``ask`` about the stored offset.

    ``ask`` reads the slot after the offset was loaded. A running pipeline may store and confirm another
    offset in between, so that the slot seems to have lost changes. A ``refused`` answer counts only if the
    stored offset is still the same, or has moved ``TURNS`` times. Raises: OffsetError; the errors of
    ``ask``.
    """
    offset = store.load()
    for _ in range(TURNS):
        answer = ask(offset)
        before, offset = offset, store.load() if refused(answer) else offset
        if offset == before:
            return answer
    return ask(offset)
