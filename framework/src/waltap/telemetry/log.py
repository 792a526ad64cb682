"""Structured logs: one JSON object per line, or short text; the fields come from one vocabulary.

A log call has a constant lower-case message and puts what varies in ``extra``; a name that is not
in `FIELDS` is left out. Never a row value, a key or a secret.
"""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime

from waltap.config.redaction import redacted
from waltap.printable import printable

__all__ = ["FIELDS", "FORMS", "LineHandler", "as_json", "as_text", "configure", "set_level"]

FIELDS = (
    "pipeline",
    "slot",
    "publication",
    "relation",
    "lsn",
    "xid",
    "batch_rows",
    "batch_bytes",
    "rows",
    "tables",
    "rows_per_second",
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
"""Names that may stand in ``extra``; units are in the name."""


class LineHandler(logging.Handler):
    """Gives each formatted record to ``write``, e.g. a console that also shows progress bars.

    Secrets are hidden in the whole line, whatever put them there, and what others wrote in it neither ends
    the line nor drives a terminal. ``labels`` are those of the profile
    whose pipeline runs here; lines of JSON have them.
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
        """Give what comes from now on to another, in another form."""
        with self.lock or nullcontext():
            self._write, self._form = write, form

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        record.labels = self.labels
        try:
            self._write(printable(redacted(self._form(record))))
        except Exception:  # noqa: BLE001 - logging never stops a pipeline
            self.handleError(record)


def as_json(record: logging.LogRecord) -> str:
    """Return a record as one JSON object: ts, level, logger, message, fields, labels."""
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
    """Log what is of ``level`` (upper case) or above; one that is not known is INFO."""
    logging.getLogger().setLevel(logging.getLevelNamesMapping().get(level, logging.INFO))


def configure(write: Callable[[str], object], *, form: str, level: str) -> LineHandler:
    """Send the logs of waltap and its plugins to ``write``; ``form`` is json or text.

    Returns the handler, to be removed from the root logger by whoever wants that.
    """
    handler = LineHandler(write, FORMS[form])
    logging.getLogger().addHandler(handler)
    set_level(level)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # logs every call of the JVM otherwise
    logging.getLogger("httpx").setLevel(
        logging.WARNING
    )  # logs addresses, and a webhook's is a secret
    return handler


def _fields(record: logging.LogRecord) -> dict[str, object]:
    given = vars(record)
    return {name: given[name] for name in FIELDS if name in given}
