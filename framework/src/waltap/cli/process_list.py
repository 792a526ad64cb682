"""What the list of processes shows of our command line: no secret, as far as the system lets us."""

import ctypes
from pathlib import Path

from waltap.config.redaction import looks_secret, masked

__all__ = ["conceal", "concealed"]

SETTINGS = "--set"
START, END = 45, 46
"""Fields of /proc/self/stat behind the name: where the arguments begin and end in our memory."""


def conceal() -> None:
    """Put stars in place of the secrets of this process's arguments, where `ps` reads them (Linux).

    ``sys.argv`` stays. Until then, a tenth of a second, the list shows them; a profile never does.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
        start, end = int(fields[START]), int(fields[END])
    except (OSError, ValueError, IndexError):
        return
    if not 0 < start < end:
        return
    before = ctypes.string_at(start, end - start)
    after = "\0".join(concealed(before.decode("latin-1").split("\0"))).encode("latin-1")
    if after != before and len(after) == len(before):
        ctypes.memmove(start, after, len(after))


def concealed(words: list[str]) -> list[str]:
    """Return the arguments ``words`` with stars for secrets, each as long as it was."""
    found: list[str] = []
    for number, word in enumerate(words):
        setting = word.removeprefix(f"{SETTINGS}=")
        if setting != word or (number and words[number - 1] == SETTINGS):
            name, equals, value = setting.partition("=")
            if looks_secret(name):
                shown = "*" * len(value)
            else:  # what stands behind the host of an address may be a secret, too: a webhook's is
                head, scheme, rest = value.partition("://")
                host, slash, path = rest.partition("/")
                shown = f"{head}{scheme}{host}{slash}{'*' * len(path)}"
            word = f"{word[: len(word) - len(setting)]}{name}{equals}{shown}"  # noqa: PLW2901
        found.append(masked(word))
    return found
