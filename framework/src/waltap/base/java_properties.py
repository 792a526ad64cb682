"""Read Java ``.properties`` text, as Kafka Connect does. Sans-IO.

Source: the Java platform's documentation of ``java.util.Properties.load``: logical lines, comments,
three separators, escapes. The last value of a repeated key wins.
"""

BLANKS = " \t\f"
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of ``text``.

    Raises: ValueError with the line of a bad escape.
    """
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, rest = _key_and_rest(line)
        try:
            values[_unescaped(key)] = _unescaped(rest)
        except ValueError as cause:
            raise ValueError(f"line {number}: {cause}") from cause
    return values


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Join continued lines and number each by its first line.

    Blank lines and comments are dropped.
    """
    lines: list[tuple[int, str]] = []
    pending: tuple[int, str] | None = None
    natural = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, raw in enumerate(natural, start=1):
        line = raw.lstrip(BLANKS)
        if pending is None and (not line or line[0] in "#!"):
            continue
        start, before = pending or (number, "")
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending = (start, before + line[:-1])
        else:
            pending = None
            lines.append((start, before + line))
    if pending is not None:
        lines.append(pending)
    return lines


def _key_and_rest(line: str) -> tuple[str, str]:
    """Split at the first unescaped ``=``, ``:`` or blank."""
    at = 0
    while at < len(line) and line[at] not in "=:" + BLANKS:
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(BLANKS)
    if rest[:1] in {"=", ":"}:
        rest = rest[1:].lstrip(BLANKS)
    return line[:at], rest


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter != "\\":
            out.append(letter)
            continue
        if at == len(text):
            break
        letter = text[at]
        at += 1
        if letter == "u":
            digits = text[at : at + 4]
            if len(digits) < 4 or not all(d in "0123456789abcdefABCDEF" for d in digits):
                raise ValueError(f"\\u needs four hexadecimal digits, found {digits!r}")
            out.append(chr(int(digits, 16)))
            at += 4
        else:
            out.append(ESCAPES.get(letter, letter))
    # \ud83d\ude00 is one character in two escapes
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
