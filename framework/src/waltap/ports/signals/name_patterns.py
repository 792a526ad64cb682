"""Match untrusted patterns against table names in bounded time. Sans-IO."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from waltap.changes.capture.java_regex import python_syntax
from waltap.ports.signals.errors import SignalUnusable

# Such an entry can only match itself: its one dot is the dot of the name.
PLAIN = re.compile(r"\w+\.\w+")

LONGEST = 10_000
"""Most characters of one pattern."""


class NamePatterns:
    """Match the patterns of one signal.

    All patterns together may take ``seconds`` of ``clock``. The clock counts the processor time of
    the thread, so that a busy machine does not shorten the limit.
    """

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._end = clock() + seconds
        self._compiled: dict[tuple[str, bool], Any] = {}

    def matching(
        self, text: str, known: Mapping[str, object] | Iterable[str], *, case_sensitive: bool = True
    ) -> list[str]:
        """Return the names that the pattern ``text`` matches whole.

        They keep the order of ``known``. An invalid pattern matches nothing. Raises: SignalUnusable.
        """
        if case_sensitive and isinstance(known, Mapping) and PLAIN.fullmatch(text):
            return [text] if text in known else []
        pattern = self._pattern(text, case_sensitive=case_sensitive)
        if pattern is None:
            return []
        return [name for name in known if self._fits(pattern, name, text)]

    def _fits(self, pattern: Any, name: str, text: str) -> bool:
        while True:
            left = max(self._end - self._clock(), 0.000_001)
            try:
                return pattern.fullmatch(name, timeout=left) is not None
            except TimeoutError as error:
                if self._clock() < self._end:
                    # the package also counts the work of the process's other threads
                    continue
                raise SignalUnusable(
                    f"its patterns take longer than {self._seconds:g} s of a processor to match; "
                    f"they were given up at {text[:100]!r}"
                ) from error

    def readable(self, text: str) -> bool:
        """Return whether ``text`` is a regular expression.

        Raises: SignalUnusable.
        """
        return self._pattern(text, case_sensitive=True) is not None

    def _pattern(self, text: str, *, case_sensitive: bool) -> Any:
        # A pattern can take exponentially long on one name. Unlike `re`, `regex` has a time-out.
        import regex

        key = (text, case_sensitive)
        if key not in self._compiled:
            if len(text) > LONGEST:
                raise SignalUnusable(f"a pattern is longer than {LONGEST} characters")
            flags = 0 if case_sensitive else regex.IGNORECASE
            try:
                self._compiled[key] = regex.compile(python_syntax(text), flags)
            except (regex.error, OverflowError, ValueError):
                self._compiled[key] = None
            except RecursionError as error:
                raise SignalUnusable("a pattern is nested too deep") from error
        return self._compiled[key]
