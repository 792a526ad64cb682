"""Replacement of names by Java's regular expressions."""

from collections.abc import Callable
from functools import lru_cache

from waltap.changes.capture.java_regex import java_pattern, java_replacement

# Names may be endless, such as one for each day, so the cache must not grow with them.
MAX_NAMES = 10_000


def replaced_by(regex: str, replacement: str) -> Callable[[str], str | None]:
    """Return the function that renames whole matches of ``regex``.

    It returns None for a name that does not match. Raises: ValueError.
    """
    pattern = java_pattern(regex, ignore_case=False)
    template = java_replacement(replacement, pattern)

    @lru_cache(MAX_NAMES)
    def renamed(name: str) -> str | None:
        # Java tests the whole name but then replaces the first match, which may be shorter.
        return pattern.sub(template, name, count=1) if pattern.fullmatch(name) else None

    return renamed
