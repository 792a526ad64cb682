"""Strings in double quotes, as arrays and hstore print them: behind a backslash, a character is itself."""

__all__ = ["quoted"]


def quoted(text: str, at: int, what: str) -> tuple[str, int]:
    """Return the string whose first character is at ``at``, behind its quote, and the offset behind the
    closing one. ``what`` is malformed without it. Raises: ValueError, IndexError."""
    parts: list[str] = []
    while True:
        close = text.find('"', at)
        if close < 0:
            msg = f"malformed {what}: a quote is never closed"
            raise ValueError(msg)
        slash = text.find("\\", at, close)
        if slash < 0:
            parts.append(text[at:close])
            return "".join(parts), close + 1
        parts.append(text[at:slash])
        parts.append(text[slash + 1])
        at = slash + 2
