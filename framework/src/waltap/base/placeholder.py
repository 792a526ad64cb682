"""Fill in secrets: ``${env:NAME}``, ``${file:PATH}``, ``${file:PATH:KEY}``.

The last form is Kafka Connect's FileConfigProvider: one key of a ``.properties`` file. Relative
paths start at the profile's folder. A filled-in value is never shown: messages and
listings show the placeholder.
"""

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waltap.base.environment import variable
from waltap.base.java_properties import parse_properties

PLACEHOLDER = re.compile(r"\$\{([A-Za-z][A-Za-z0-9_]*):([^}]*)\}")
VARIABLE = re.compile(r"\$\{([A-Z_][A-Z0-9_]*)\}")
"""As a shell or Debezium Server names a variable. It stays: a regular expression may mean a group."""

MOST_BYTES = 16 * 1024 * 1024
"""Of a profile or secret."""


class SecretMissing(ValueError):
    """A placeholder's secret does not exist; the text contains no secret."""


@dataclass(frozen=True, slots=True)
class SecretRefresh:
    """The origin of a value, to read its secrets again."""

    # The text with placeholders, None without a file: the environment of a process stays as it is.
    template: str | None
    # Start of relative paths.
    folder: Path

    def now(self) -> str | None:
        """Return the value with its present secrets. Raises: SecretMissing."""
        return None if self.template is None else fill(self.template, self.folder)[0]


def holds_placeholder(value: object) -> bool:
    """Return whether a text or list has a placeholder."""
    if isinstance(value, list | tuple):
        return any(map(holds_placeholder, value))
    return isinstance(value, str) and PLACEHOLDER.search(value) is not None


def fill(value: Any, folder: Path) -> tuple[Any, tuple[str, ...]]:
    """Fill placeholders of a text or list; return its secrets, too.

    Raises: SecretMissing.
    """
    secrets: list[str] = []

    def replace(match: re.Match[str]) -> str:
        secret = _secret(match[1], match[2], folder)
        secrets.append(secret)
        return secret

    def filled(each: Any) -> Any:
        if isinstance(each, list | tuple):
            return list(map(filled, each))
        return PLACEHOLDER.sub(replace, each) if isinstance(each, str) else each

    return filled(value), tuple(secrets)


def contents(path: Path) -> bytes:
    """Return a file's bytes. Raises: OSError, also for endless devices."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def _secret(provider: str, argument: str, folder: Path) -> str:
    if not argument:
        raise SecretMissing(f"${{{provider}:}} names nothing: use ${{env:NAME}} or ${{file:PATH}}")
    if provider == "env":
        found = variable(argument)
        if found is None:
            raise SecretMissing(f"needs the environment variable {argument}, which is not set")
        return found
    if provider == "file":
        return _from_file(argument, folder)
    message = f"no secrets provider is called {provider!r}: use ${{env:NAME}} or ${{file:PATH}}"
    raise SecretMissing(message)


def _from_file(argument: str, folder: Path) -> str:
    path, key = folder / argument, ""
    if ":" in argument and not os.path.exists(path):  # noqa: PTH110 - Path's raises some errors
        name, _, key = argument.rpartition(":")
        path = folder / name
    try:
        text = contents(path).decode()
    except (OSError, ValueError) as cause:  # ValueError: NUL in the name, or what is no text
        reason = cause.strerror if isinstance(cause, OSError) else "not UTF-8 text"
        raise SecretMissing(f"secret file {path} cannot be read: {reason}") from cause
    if not key:
        return text.rstrip("\r\n")
    try:
        values = parse_properties(text)
    except ValueError as cause:
        raise SecretMissing(f"secret file {path} is not a .properties file") from cause
    if key not in values:
        raise SecretMissing(f"secret file {path} has no key {key!r}")
    return values[key]
