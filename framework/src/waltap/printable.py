"""Text of others, as a terminal, a page, a log or a label can have it."""

__all__ = ["printable", "printable_lines"]


def printable(text: str) -> str:
    """Return ``text`` with an escape in the place of each character that drives a terminal, turns the
    direction of writing, ends a line or is not to be seen. The escapes are also those of JSON, but for
    control characters, which JSON itself escapes."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def printable_lines(text: str) -> str:
    """Return ``text`` as `printable` does, with its line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter in "\n\t" or letter.isprintable() else _escape(letter) for letter in text
    )


def _escape(letter: str) -> str:
    if letter < " ":
        return letter.encode("unicode_escape").decode()
    pair = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pair[at : at + 4]}" for at in range(0, len(pair), 4))
