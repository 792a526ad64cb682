"""Write structured logs as JSON lines or as short text.

A log call has a constant lower-case message and puts its variable parts into ``extra``. Names that
are not in `FIELDS` are dropped. A log never has a row value, a key or a secret.
"""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime

from waltap.base.redaction import redacted
from waltap.base.text import printable

FIELDS = (
    "pipeline",
    "slot",
    "publication",
    "table",
    "lsn",
    "xid",
    "batch_rows",
    "batch_bytes",
    "rows",
    "tables",
    "events",
    "events_per_second",
    "changes",
    "snapshot_rows",
    "transactions",
    "seconds",
    "lag_bytes",
    "duration_ms",
    "error_code",
    "hook",
    "plugin",
    "property",
)
"""Names that ``extra`` may have; units are in the name."""


class LineHandler(logging.Handler):
    """Format records and pass the lines to ``write``.

    ``write`` can be a console that also shows progress bars. ``labels`` are the labels of the
    profile; JSON lines have them.
    """

    def __init__(
        self, write: Callable[[str], object], form: Callable[[logging.LogRecord], str]
    ) -> None:
        super().__init__()
        self._write, self._form = write, form
        self.labels: dict[str, str] = {}

    def redirect(
        self, write: Callable[[str], object], form: Callable[[logging.LogRecord], str]
    ) -> None:
        """Send later records to another writer in another form."""
        with self.lock or nullcontext():
            self._write, self._form = write, form

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        record.labels = self.labels
        # the whole line is cleaned, whatever put a secret into it; text from outside must neither
        # end the line nor control a terminal
        try:
            self._write(printable(redacted(self._form(record))))
        except Exception:  # noqa: BLE001 - logging never stops a pipeline
            self.handleError(record)


def as_json(record: logging.LogRecord) -> str:
    """Return a record as one JSON object.

    Members: ts, level, logger, message, fields, labels.
    """
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    document: dict[str, object] = {
        "ts": at.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
        **_fields(record),
    }
    if labels := vars(record).get("labels"):
        document["labels"] = labels
    if record.exc_info and record.exc_info[0] is not None:
        document["exception"] = f"{record.exc_info[0].__name__}: {record.exc_info[1]}"
    return json.dumps(document, default=str, ensure_ascii=False)


def as_text(record: logging.LogRecord) -> str:
    """Return a record as one line for people."""
    fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
    text = f"{record.levelname.lower()}: {record.getMessage()}{fields}"
    if record.exc_info and record.exc_info[0] is not None:
        text += f" ({record.exc_info[0].__name__}: {record.exc_info[1]})"
    return text


FORMS: Mapping[str, Callable[[logging.LogRecord], str]] = {"json": as_json, "text": as_text}


def set_level(level: str) -> None:
    """Set the lowest level (upper case); an unknown level is INFO."""
    logging.getLogger().setLevel(logging.getLevelNamesMapping().get(level, logging.INFO))


def configure(write: Callable[[str], object], *, form: str, level: str) -> LineHandler:
    """Send the logs of waltap and its plugins to ``write``.

    ``form`` is json or text. Returns the handler, which the caller may remove from the root logger.
    """
    handler = LineHandler(write, FORMS[form])
    logging.getLogger().addHandler(handler)
    set_level(level)
    # py4j logs every call of the JVM otherwise
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # httpx logs addresses, and the address of a webhook is a secret
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return handler


def _fields(record: logging.LogRecord) -> dict[str, object]:
    given = vars(record)
    return {name: given[name] for name in FIELDS if name in given}
