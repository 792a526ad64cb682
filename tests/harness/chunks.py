"""Things that happen around the reading of a chunk of an incremental snapshot, by the real reader."""

from collections.abc import Callable
from typing import Any

import pytest

from waltap_postgres.snapshot.chunk_query import PostgresChunks


def around_chunk(
    monkeypatch: pytest.MonkeyPatch,
    action: Callable[[], object],
    *,
    when: str = "after",
    nth: int = 1,
) -> None:
    """Let ``action`` happen before or after the reading of the ``nth`` chunk."""
    real, count = PostgresChunks.chunk, 0

    def chunk(self: PostgresChunks, *arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == nth and when == "before":
            action()
        rows = real(self, *arguments, **named)
        if count == nth and when == "after":
            action()
        return rows

    monkeypatch.setattr(PostgresChunks, "chunk", chunk)
