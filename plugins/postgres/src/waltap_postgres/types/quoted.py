"""Strings in double quotes, as arrays and hstore print them.

After a backslash, a character is itself.
"""

__all__ = ["quoted"]


def quoted(text: str, at: int, what: str) -> tuple[str, int]:
    """Return the string that starts at ``at``, and the offset after its end.

    ``at`` is after the opening quote, the returned offset after the closing one. ``what`` names
    the malformed value in the error. Raises ValueError and IndexError.
    """
    parts: list[str] = []
    while True:
        close = text.find('"', at)
        if close < 0:
            msg = f"malformed {what}: a quote is never closed"
            raise ValueError(msg)
        # `find` per part instead of a loop per character: most strings have no backslash.
        slash = text.find("\\", at, close)
        if slash < 0:
            parts.append(text[at:close])
            return "".join(parts), close + 1
        parts.append(text[at:slash])
        parts.append(text[slash + 1])
        at = slash + 2
