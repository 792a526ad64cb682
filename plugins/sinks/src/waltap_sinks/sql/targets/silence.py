"""Judge a server that does not answer."""

import time
from collections.abc import Callable
from typing import Final

# Seconds of silence after which a server is asked what it does.
SILENCE_S = 30.0
# A connection for such a question ends after so many.
QUESTION_S: Final = 10
LINK_LOSES: Final = "the server waits for the client, too: the link between them loses what is sent"


class SilenceWatch:
    """Judge a server that does not answer a statement.

    ``is_busy`` asks over another connection whether the server works for this one. If not twice in
    a row, the link has lost the statement or its answer, though the systems at its ends acknowledge
    all bytes; given True, ``is_busy`` ends the session in the server, which has locks.
    """

    def __init__(self, is_busy: Callable[[bool], bool]) -> None:
        self._is_busy, self._since, self._idle = is_busy, time.monotonic(), 0

    def is_final(self) -> bool:
        """Return whether no answer will come, while none has come."""
        if self._idle < 2 and time.monotonic() - self._since >= SILENCE_S:
            self._idle = 0 if self._is_busy(self._idle == 1) else self._idle + 1
            self._since = time.monotonic()
            return False
        return self._idle == 2
