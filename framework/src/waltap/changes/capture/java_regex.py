"""Compile Java's regular expressions of Debezium's settings for Python.

Lists match complete names, case-insensitively. Syntax that Python writes in another way is
translated. Syntax that Python cannot express is an error, never a guess.
"""

import hashlib
import re
import warnings
from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator

from waltap.base.property import Maybe, MaybeList, split_list

P = TypeVar("P", str, str | None)

_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)", re.DOTALL)
_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "A-Za-z",
    "Digit": "0-9",
    "Alnum": "A-Za-z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "XDigit": "0-9A-Fa-f",
    "Space": r" \t\n\x0b\f\r",
    "Blank": r" \t",
}
_SET = re.compile(r"\\.|\[\^?(?P<members>\]?(?:\\.|[^\]\\])*)", re.DOTALL)
_SET_OF_SETS = re.compile(r"(?:\\.|[^\[&\\]|&(?!&))*(?:\[|&&)", re.DOTALL)
_PROPERTY = re.compile(r"\\([pP])\{(?:Is)?(\w+)\}")
_ESCAPE = re.compile(r"\\(.)|\$(\d)|\$\{([A-Za-z]\w*)\}|\\", re.DOTALL)


def java_pattern(text: str, *, ignore_case: bool = True) -> re.Pattern[str]:
    """Compile the Java pattern ``text``; use it with ``fullmatch``.

    Raises ValueError with the reason.
    """
    try:
        with warnings.catch_warnings():
            # Python warns of sets whose meaning may change; those that differ in Java are
            # refused.
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(
                # Java ignores the case of ASCII letters only, without UNICODE_CASE.
                python_syntax(text),
                re.ASCII | (re.IGNORECASE if ignore_case else re.NOFLAG),
            )
    except (re.error, OverflowError, RecursionError, ValueError) as cause:
        raise ValueError(f"not a regular expression: {text!r}: {cause}") from cause


def python_syntax(text: str) -> str:
    """Return the Java pattern ``text`` in Python's syntax.

    Raises ValueError for a union (``[a[bc]]``) or an intersection (``[a-z&&[^b]]``) of sets,
    which Python lacks.
    """
    translated = _QUOTED.sub(lambda match: re.escape(match[1]), text)
    translated = _NAMED_GROUP.sub("(?P<", translated)
    for members in _SET.finditer(translated):
        if members["members"] and _SET_OF_SETS.match(members["members"]):
            raise ValueError("sets inside sets and && are not known here: write them as one set")
    # Java's \z is Python's \Z: the very end, after a final newline.
    return _PROPERTY.sub(_posix_class, translated).replace(r"\z", r"\Z")


def _posix_class(match: re.Match[str]) -> str:
    members = _POSIX.get(match[2])
    if members is None:
        return match[0]
    negated = match[1] == "P"
    before = match.string[: match.start()]
    inside_class = before.count("[") - before.count(r"\[") > before.count("]") - before.count(r"\]")
    if inside_class:
        return match[0] if negated else members  # a negated part of a class has no short form
    return f"[{'^' if negated else ''}{members}]"


def java_replacement(text: str, pattern: re.Pattern[str]) -> str:
    """Translate a Java replacement (``$1``, ``${name}``) for ``Match.expand``.

    Raises ValueError for a lone backslash or dollar sign, or a group that ``pattern`` lacks.
    """
    out: list[str] = []
    at = 0
    while at < len(text):
        match = _ESCAPE.match(text, at)
        if match is None:
            if text[at] == "$":
                raise ValueError(f"not a replacement: {text!r}: $ without a group")
            out.append(text[at])
            at += 1
            continue
        escaped, number, name = match.groups()
        if escaped is not None:
            out.append("\\\\" if escaped == "\\" else escaped)
        elif number is not None:
            end = match.end()  # more digits belong to it while there is such a group
            while re.match("[0-9]", text[end:]) and int(number + text[end]) <= pattern.groups:
                number += text[end]
                end += 1
            out.append(f"\\g<{number}>")
            at = end
            continue
        elif name is not None:
            out.append(f"\\g<{name}>")
        else:
            raise ValueError(f"not a replacement: {text!r}: it ends in a backslash")
        at = match.end()
    template = "".join(out)
    try:
        # A missing group raises here, at the start, and not at the first match.
        pattern.sub(template, "")
    except (re.error, IndexError) as cause:
        raise ValueError(f"not a replacement: {text!r}: {cause}") from cause
    return template


class NameMatcher:
    """Match names fully against patterns; without patterns nothing matches."""

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Sequence[str]) -> None:
        """Compile ``patterns``.

        Raises ValueError with the bad one.
        """
        self._patterns = tuple(java_pattern(pattern) for pattern in patterns)

    def __call__(self, name: str) -> bool:
        """Return whether any pattern matches all of ``name``."""
        return any(pattern.fullmatch(name) for pattern in self._patterns)

    def __bool__(self) -> bool:
        return bool(self._patterns)


def _each_compiles(patterns: tuple[str, ...]) -> tuple[str, ...]:
    NameMatcher(patterns)
    return patterns


def _compiles(pattern: P) -> P:
    java_pattern(pattern or "")
    return pattern


# Types of properties: a bad pattern fails when the profile is read, not at the first table.
Pattern = Annotated[str, AfterValidator(_compiles)]
MaybePattern = Annotated[Maybe[str], AfterValidator(_compiles)]
PatternList = Annotated[MaybeList, AfterValidator(_each_compiles)]


HASH = re.compile(r"column\.mask\.hash\.(v2\.)?([^.]+)\.with\.salt\.(.+)")
LONGEST_MASK = 1_000_000
_NUMBER = re.compile(r"\d+")
_PYTHON_NAMES = {"SHA": "sha1", "SHA-1": "sha1"}


def check_family(name: str, patterns: str) -> None:
    """Check one property of the families.

    Raises ValueError with the reason.
    """
    try:
        NameMatcher(split_list(patterns))
        hashed = HASH.fullmatch(name)
        if hashed is not None:
            digest_name(hashed[2])
    except ValueError as cause:
        raise ValueError(f"{name}: {cause}") from cause
    masks = hashed is None and name.startswith("column.mask.")
    if masks and int(number_in(name)) > LONGEST_MASK:
        raise ValueError(f"{name}: at most {LONGEST_MASK} asterisks")


def number_in(name: str) -> str:
    """Return the first number in the name of a property."""
    match = _NUMBER.search(name)
    assert match is not None, name
    return match[0]


def digest_name(algorithm: str) -> str:
    """Return hashlib's name of a JCA algorithm.

    Raises ValueError when there is none.
    """
    name = _PYTHON_NAMES.get(algorithm.upper())
    if name is None:
        plain = algorithm.lower().replace("/", "_")
        name = plain.replace("-", "_") if plain.startswith("sha3") else plain.replace("-", "")
    # A shake digest has no fixed length, so it cannot be used without one.
    if name not in hashlib.algorithms_available or name.startswith("shake"):
        raise ValueError(f"unknown hash algorithm {algorithm}; SHA-256 is a good one")
    return name
