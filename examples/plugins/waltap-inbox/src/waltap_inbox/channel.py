"""Signals from a file: one JSON object with id, type and data per line.

The rules that the tests check: poll does not wait; signals come in order, until they are confirmed;
what is no signal is left out.
"""

import json
import logging
from pathlib import Path

from waltap.config import Properties, declare
from waltap.ports.signals import Signal

log = logging.getLogger(__name__)


class InboxProperties(Properties):
    """Where signals come from."""

    path: Path = declare("inbox.path", summary="File that signals are appended to.")


class InboxChannel:
    """Takes the file away, and deletes it when waltap has stored its signals."""

    def __init__(self, properties: InboxProperties) -> None:
        self._path = properties.path
        self._taken = self._path.with_name(self._path.name + ".taken")

    def poll(self) -> list[Signal]:
        """Return the signals that have arrived; after a crash they come again."""
        try:
            if not self._taken.exists():  # else a run that died left it
                self._path.rename(self._taken)  # who appends from now on makes a new file
        except FileNotFoundError:
            return []
        lines = self._taken.read_bytes().splitlines()
        found = [signal for signal in map(_parsed, lines) if signal is not None]
        if not found:
            self.confirm()
        return found

    def confirm(self) -> None:
        """Forget the signals of the last poll."""
        self._taken.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held."""


def _parsed(line: bytes) -> Signal | None:
    try:
        item = json.loads(line)
        return Signal(str(item["id"]), str(item["type"]), json.dumps(item.get("data") or {}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        log.warning("a line is no signal and is left out")
        return None
