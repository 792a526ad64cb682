"""How lines for people look: colours and clock."""

from datetime import UTC, datetime
from typing import Final

__all__ = ["TerminalStyle"]

COLOURS: Final = {
    "READ": "\x1b[36m",
    "INSERT": "\x1b[32m",
    "UPDATE": "\x1b[33m",
    "DELETE": "\x1b[31m",
    "TOMBSTONE": "\x1b[31m",
    "TRUNCATE": "\x1b[35m",
    "MESSAGE": "\x1b[34m",
    "RECORD": "\x1b[34m",
}
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


class TerminalStyle:
    """Writes the parts of a line; ``width`` is the longest value before it is cut."""

    def __init__(self, *, width: int, coloured: bool) -> None:
        self.width = width
        self.bold, self.dim, self.plain = (BOLD, DIM, PLAIN) if coloured else ("", "", "")
        self._colours = COLOURS if coloured else dict.fromkeys(COLOURS, "")

    def head(self, word: str) -> str:
        """Return what happened, in its colour."""
        return f"{self._colours[word]}{word:<8}{self.plain} "

    def clock(self, ts: int) -> str:
        """Return the local time of day of ``ts``, microseconds since 1970."""
        at = datetime.fromtimestamp(ts / 1_000_000, UTC).astimezone()
        return f"{self.dim}{at:%H:%M:%S}.{at.microsecond // 1000:03d}{self.plain} "

    def cut(self, text: str) -> str:
        """Return ``text``, not longer than ``width``."""
        return text if len(text) <= self.width else text[: self.width - 1] + "…"
