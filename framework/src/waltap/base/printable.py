"""Escape foreign text for terminals, pages, logs and labels."""

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    """Return ``text`` with escapes for unprintable characters.

    Such characters control a terminal, reverse the writing direction, end a line or are invisible. The
    escapes are JSON's, except for control characters, which JSON itself escapes.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def printable_lines(text: str) -> str:
    """Return printable text as `printable` does, with line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter in "\n\t" or letter.isprintable() else _escape(letter) for letter in text
    )


def _escape(letter: str) -> str:
    if letter < " ":
        return letter.encode("unicode_escape").decode()
    # JSON escapes a character above U+FFFF as two surrogates.
    pair = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pair[at : at + 4]}" for at in range(0, len(pair), 4))
